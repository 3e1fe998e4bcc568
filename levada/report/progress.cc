#include "levada/report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "levada/base/text.h"
#include "levada/report/style.h"

namespace levada::report {
namespace {

constexpr auto first_after = std::chrono::milliseconds(300);
constexpr auto interval = std::chrono::milliseconds(100);

std::string time_left(const Progress& progress, double fraction) {
  if (fraction <= 0 || fraction >= 1 || progress.seconds < 1) return "";
  const auto left = std::llround(progress.seconds * (1 - fraction) / fraction);
  return fmt::format(", {}:{:02} left", left / 60, left % 60);
}

int columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void write_text(std::string_view text) {
  // A closed terminal is no reason to fail.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string render_progress(const Progress& progress, int columns) {
  const auto limit = static_cast<std::size_t>(std::max(columns - 1, 0));
  if (!progress.total || *progress.total == 0) {
    return fmt::format("{}  {}", progress.what, progress.amount).substr(0, limit);
  }
  const double fraction = std::min(1.0, static_cast<double>(progress.done) / static_cast<double>(*progress.total));
  const auto tail =
      fmt::format("{:3.0f}%  {}{}", std::floor(fraction * 100), progress.amount, time_left(progress, fraction));
  const std::size_t rest = progress.what.size() + tail.size() + 4;
  constexpr std::size_t min_bar = 5;
  constexpr std::size_t max_bar = 30;
  if (rest + min_bar > limit) return fmt::format("{} {}", progress.what, tail).substr(0, limit);
  const auto columns_of_bar = std::min(max_bar, limit - rest);
  const auto bar = bar_of(fraction, columns_of_bar);
  return fmt::format("{} [{}{:{}}] {}", progress.what, bar, "", columns_of_bar - count_characters(bar), tail);
}

ProgressLine::ProgressLine(std::string what, bool wanted)
    : what_(std::move(what)), shown_(wanted && ::isatty(STDERR_FILENO) == 1), next_(start_ + first_after) {}

void ProgressLine::update(std::uint64_t done, std::optional<std::uint64_t> total, const std::string& amount) {
  if (!is_due()) return;
  const auto now = Clock::now();
  next_ = now + interval;
  const Progress progress{what_, done, total, amount, std::chrono::duration<double>(now - start_).count()};
  write_text("\r" + render_progress(progress, columns_of(STDERR_FILENO)) + "\x1b[K");
  drawn_ = true;
}

void ProgressLine::clear() {
  if (drawn_) write_text("\r\x1b[K");
  drawn_ = false;
}

}  // namespace levada::report
