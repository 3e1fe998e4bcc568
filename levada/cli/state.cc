#include "levada/cli/state.h"

#include <fmt/format.h>
#include <pthread.h>

#include <csignal>
#include <ctime>

#include "levada/base/atomic_file.h"
#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/engine/collect.h"
#include "levada/feed/step_cursor.h"

namespace levada::cli {
namespace {

sigset_t termination() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

bool termination_is_held() {
  sigset_t held;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &held);
  return sigismember(&held, SIGTERM) == 1;
}

}  // namespace

StartPoint resume(Corpus& corpus, std::string_view state, const std::string& path) try {
  auto cursor = StepCursor::decode(as_bytes(state));
  return {.first_sample = corpus.resume(cursor.source), .delayed = std::move(cursor.delayed)};
} catch (const Error& error) {
  throw_error(error.kind(), fmt::format("the state file {} cannot be used: {}", path, error.what()));
}

void StateKeeper::passed(std::int64_t step, const Bytes& state) {
  if (options_.path.empty()) return;
  state_ = state;
  if (options_.every == 0 || (step + 1) % options_.every != 0) return;
  agree(engine_, {}, Deadline::after(options_.timeout), "saving the state");
  save();
}

void StateKeeper::save() {
  if (options_.path.empty() || engine_.info().rank != 0) return;
  AtomicFile file(options_.path);
  file.write(state_);
  file.sync();
  file.publish();
}

void hold_termination() {
  const auto set = termination();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

TerminationWatch::TerminationWatch(std::function<void()> stop) {
  if (!termination_is_held()) return;
  thread_ = start_thread("--save-state", [this, stop = std::move(stop)] {
    const auto set = termination();
    const timespec moment{.tv_sec = 0, .tv_nsec = 50'000'000};
    while (!over_.load()) {
      if (::sigtimedwait(&set, nullptr, &moment) == SIGTERM) return stop();
    }
  });
}

TerminationWatch::~TerminationWatch() {
  over_.store(true);
  if (thread_.joinable()) thread_.join();
}

}  // namespace levada::cli
