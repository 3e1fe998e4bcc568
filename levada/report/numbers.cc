#include "levada/report/numbers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <utility>

#include "levada/base/deadline.h"

namespace levada::report {

std::string with_commas(std::int64_t value) {
  auto text = fmt::format("{}", value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string in_thousands(double value) {
  constexpr std::array units = {"", " k", " M", " G", " T"};
  std::size_t unit = 0;
  while (value >= 999.95 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f}{}", value, units[unit]);
}

std::string counted(std::int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", with_commas(count), noun, count == 1 ? "" : "s");
}

std::string bad_lines_sentence(std::int64_t count, const std::vector<std::string>& places) {
  auto text = counted(count, "bad line");
  if (!places.empty()) text += fmt::format(", at {}", fmt::join(places, ", "));
  if (!places.empty() && std::cmp_greater(count, places.size())) text += ", ...";
  return text;
}

std::string format_share(double share) {
  const double percent = 100 * share;
  if (percent <= 0) return "0%";
  if (percent < 0.1) return "<0.1%";
  return percent < 9.95 ? fmt::format("{:.1f}%", percent) : fmt::format("{:.0f}%", percent);
}

std::string format_seconds(double seconds) {
  if (seconds < 100) {
    return format_duration(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
  }
  const auto whole = std::llround(seconds);
  return fmt::format("{}:{:02} min", whole / 60, whole % 60);
}

}  // namespace levada::report
