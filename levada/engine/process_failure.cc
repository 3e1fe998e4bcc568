#include "levada/engine/process_failure.h"

#include <atomic>
#include <mutex>
#include <optional>

namespace levada {
namespace {

constexpr Clock::rep never = Clock::time_point::max().time_since_epoch().count();
std::atomic<Clock::rep> fails_at = never;
std::mutex mutex;
std::optional<Deadline> leaves_until;  // guarded by mutex
std::string exception_text;            // guarded by mutex

}  // namespace

void ProcessFailure::note() noexcept {
  fails_at = 0;
}

void ProcessFailure::note_exception(std::string_view text, Duration patience) {
  {
    const std::lock_guard lock(mutex);
    exception_text = text;
  }
  Clock::rep expected = never;
  fails_at.compare_exchange_strong(expected, (Clock::now() + patience).time_since_epoch().count());
}

void ProcessFailure::forget() noexcept {
  const std::lock_guard lock(mutex);
  fails_at = never;
  leaves_until.reset();
  exception_text.clear();
}

bool ProcessFailure::exists() noexcept {
  return Clock::now().time_since_epoch().count() >= fails_at;
}

std::string ProcessFailure::exception() {
  const std::lock_guard lock(mutex);
  return exception_text;
}

Deadline ProcessFailure::leave_deadline(Duration timeout) noexcept {
  const std::lock_guard lock(mutex);
  const bool is_first = !leaves_until || leaves_until->at() < Deadline::after(-timeout).at();
  if (is_first) leaves_until = Deadline::after(timeout);
  return *leaves_until;
}

}  // namespace levada
