#include "levada/engine/process_failure.h"

#include <atomic>
#include <mutex>

namespace levada {
namespace {

std::atomic<bool> has_failed = false;
std::mutex mutex;
Deadline leaves_until = Deadline::now();  // guarded by mutex

}  // namespace

void ProcessFailure::note() noexcept {
  has_failed = true;
}

void ProcessFailure::forget() noexcept {
  has_failed = false;
}

bool ProcessFailure::exists() noexcept {
  return has_failed;
}

Deadline ProcessFailure::leave_deadline(Duration timeout) noexcept {
  const std::lock_guard lock(mutex);
  const bool is_first = leaves_until.at() < Deadline::after(-timeout).at();
  if (is_first) leaves_until = Deadline::after(timeout);
  return leaves_until;
}

}  // namespace levada
