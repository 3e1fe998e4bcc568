#include "levada/report/style.h"

#include <fmt/format.h>
#include <unistd.h>

namespace levada::report {

Style Style::of_descriptor(int fd, const std::function<const char*(const char*)>& get) {
  const char* refused = get("NO_COLOR");
  const char* terminal = get("TERM");
  const bool dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  return Style((refused == nullptr || *refused == '\0') && !dumb && ::isatty(fd) == 1);
}

std::string Style::marked(std::string_view code, std::string_view text) const {
  return coloured_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

}  // namespace levada::report
