// Blocking calls from Python: without the GIL, and ended by Ctrl-C.
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

/// Returns a caller's timeout: at most 30 years, which no sum of waits and clocks overflows, and none for NaN.
inline Duration duration_of(double seconds) {
  constexpr double max_seconds = 1e9;
  if (std::isnan(seconds)) return {};
  const double clamped = std::clamp(seconds, -max_seconds, max_seconds);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(clamped));
}

/// Throws the exception of a signal handler that is due, such as KeyboardInterrupt. With the GIL or without.
inline void check_signals() {
  const nanobind::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

/// check_signals(), twenty times a second at most, since it takes the GIL. One thread at a time.
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

/// Returns what `work`, a blocking call without a poll of its own, returns on a thread of its own. When a signal
/// handler raises, calls `interrupt`, which must make `work` end soon, and throws the exception. With the GIL.
template <typename Work, typename Interrupt>
auto interruptible(Work work, Interrupt interrupt) {
  using Result = decltype(work());
  // Let go of here alone: what `work` holds of Python's must not go on a thread that nobody waits for.
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

/// Returns what `work` returns, called with the job's engine and a poll for its waits (WaitFor::poll), on this thread,
/// without the GIL. When a signal handler raises, the group ends, so that nobody waits for this rank, and the exception
/// is thrown. With the GIL. `what` is being done.
template <typename Work>
auto interruptible_on(const Membership& job, const std::string& what, Work work) {
  const auto engine = job.shared();
  const nanobind::gil_scoped_release released;
  // Here, not behind the wait that it ends: what is unwound closes channels, and others would not see why.
  const std::function<void()> poll = [&, signals = SignalPoll()]() mutable {
    try {
      signals();
    } catch (const nanobind::python_error&) {
      engine->abort("a rank was interrupted in " + what);
      throw;
    }
  };
  return work(engine, poll);
}

/// Waits until no other thread is inside or the deadline has passed. Throws what a signal handler raises. With the GIL,
/// which it releases meanwhile.
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
