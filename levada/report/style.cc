#include "levada/report/style.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace levada::report {

Style Style::of_descriptor(int fd, const std::function<const char*(const char*)>& get) {
  const char* refused = get("NO_COLOR");
  const char* terminal = get("TERM");
  const bool dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  return Style((refused == nullptr || *refused == '\0') && !dumb && ::isatty(fd) == 1);
}

std::string Style::marked(std::string_view code, std::string_view text) const {
  return colored_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

std::string to_string(const TextTable& table, const std::vector<bool>& right, const Style& style,
                      const std::string& indent) {
  const auto lines = table.lines(right);
  std::string text = indent + style.bold(lines.front()) + "\n";
  for (std::size_t i = 1; i < lines.size(); ++i) text += indent + lines[i] + "\n";
  return text;
}

std::string fact(const Style& style, std::string_view name, std::size_t width, std::string_view value) {
  return fmt::format("  {}  {}\n", style.bold(fmt::format("{:<{}}", name, width)), value);
}

std::string bar_of(double share, std::size_t columns) {
  constexpr std::array eighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto filled = std::max<std::int64_t>(std::llround(share * static_cast<double>(columns) * 8), share > 0 ? 1 : 0);
  std::string bar;
  for (std::int64_t i = 0; i < filled / 8; ++i) bar += "█";
  return bar + eighths[static_cast<std::size_t>(filled % 8)];
}

}  // namespace levada::report
