#include "levada/base/deadline.h"

#include <fmt/format.h>

#include <charconv>

#include "levada/base/error.h"

namespace levada {

Deadline Deadline::after(Duration wait) {
  const auto now = Clock::now();
  if (wait >= Clock::time_point::max() - now) return never();
  return Deadline(now + wait);
}

Duration Deadline::remaining() const {
  if (is_never()) return Duration::max();
  const auto now = Clock::now();
  return at_ > now ? at_ - now : Duration::zero();
}

Duration parse_duration(std::string_view text) {
  double count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  double seconds = 0;
  if (unit.empty() || unit == "s") seconds = count;
  else if (unit == "us") seconds = count * 1e-6;
  else if (unit == "ms") seconds = count * 1e-3;
  else if (unit == "m") seconds = count * 60;
  else if (unit == "h") seconds = count * 3600;
  else seconds = -1;
  constexpr double century = 3.2e9;
  if (error != std::errc{} || !(seconds >= 0) || seconds > century) {
    throw InvalidArgument(fmt::format("'{}' is not a duration; write one as 250us, 500ms, 30s, 2m or 1h", text));
  }
  return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
}

std::string format_duration(Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  if (seconds >= 1) return fmt::format("{:.1f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.0f} us", seconds * 1e6);
}

}  // namespace levada
