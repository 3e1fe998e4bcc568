// Blocking calls from Python: they release the GIL, and Ctrl-C interrupts them.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "levada/base/deadline.h"
#include "levada/base/one_caller.h"
#include "levada/base/threads.h"
#include "levada/engine/engine.h"
#include "python/src/job/launch.h"

namespace levada::python {

/// Returns a caller's timeout, clamped to 30 years so that sums of waits and clocks cannot overflow; zero for NaN.
inline Duration duration_of(double seconds) {
  constexpr double max_seconds = 1e9;
  if (std::isnan(seconds)) return {};
  const double clamped = std::clamp(seconds, -max_seconds, max_seconds);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(clamped));
}

/// Throws the exception of a pending signal handler, such as KeyboardInterrupt. With or without the GIL.
inline void check_signals() {
  const nanobind::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

/// Calls check_signals() at most twenty times a second, since each call takes the GIL. Used by one thread at a time.
class SignalPoll {
 public:
  void operator()() {
    const auto now = Clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return;
    last_ = now;
    check_signals();
  }

 private:
  Clock::time_point last_ = Clock::now();
};

/// Runs `work`, a blocking call that does not poll, on a new thread and returns its result. If a signal handler raises,
/// calls `interrupt`, which must make `work` end soon, and throws the exception. With the GIL.
template <typename Work, typename Interrupt>
auto interruptible(Work work, Interrupt interrupt) {
  using Result = decltype(work());
  // The task is destroyed only on this thread: Python objects in `work` must not be destroyed on a detached thread.
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(work));
  auto result = task->get_future();
  std::thread thread = start_thread("waiting", [task] { (*task)(); });
  const auto is_done = [&result](Duration wait) {
    const nanobind::gil_scoped_release released;
    return result.wait_for(wait) == std::future_status::ready;
  };
  while (!is_done(std::chrono::milliseconds(50))) {
    if (PyErr_CheckSignals() == 0) continue;
    const nanobind::python_error interruption;
    const nanobind::gil_scoped_release released;
    interrupt();
    thread.join();
    throw interruption;
  }
  thread.join();
  return result.get();
}

/// Calls `work` on this thread with the job's engine and a poll for its waits (WaitFor::poll), and returns its result.
/// If a signal handler raises, aborts the group, so that no rank waits for this one, and throws the exception. `what`
/// names the operation in the abort message. Must be called with the GIL, which it releases.
template <typename Work>
auto interruptible_on(const Membership& job, const std::string& what, Work work) {
  const EngineWithoutGil engine(job.shared());
  // Abort inside the poll rather than after the wait: unwinding closes channels, and the others would not see the
  // cause.
  const std::function<void()> poll = [&, signals = SignalPoll()]() mutable {
    try {
      signals();
    } catch (const nanobind::python_error&) {
      engine->abort("a rank was interrupted in " + what);
      throw;
    }
  };
  return work(engine.shared(), poll);
}

/// Waits until no other thread is inside or the deadline has passed. Throws the exception of a signal handler. Must be
/// called with the GIL, which it releases while waiting.
inline void wait_for_others(const OneCaller& callers, Deadline deadline) {
  while (!callers.is_free() && !callers.is_mine() && !deadline.expired()) {
    {
      const nanobind::gil_scoped_release released;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

}  // namespace levada::python
