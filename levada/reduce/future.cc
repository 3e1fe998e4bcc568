#include "levada/reduce/future.h"

#include <utility>

namespace levada {

bool Future::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

bool Future::wait(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return done_; };
  if (!deadline.is_never()) return changed_.wait_until(lock, deadline.at(), is_done);
  changed_.wait(lock, is_done);
  return true;
}

const Results& Future::results() const {
  wait(Deadline::never());
  if (error_) std::rethrow_exception(error_);
  return results_;
}

void Future::finish(Results results, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    results_ = std::move(results);
    error_ = std::move(error);
    done_ = true;
  }
  changed_.notify_all();
}

}  // namespace levada
