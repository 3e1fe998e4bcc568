// Keeps a feed's state in a file, and stops a feed in an orderly way on SIGTERM.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/corpus/corpus.h"
#include "levada/engine/engine.h"
#include "levada/plan/delay_queue.h"

namespace levada::cli {
/// The point at which a feed resumes.
struct StartPoint {
  std::int64_t first_sample = 0;
  std::vector<DelayedSample> delayed = {};  ///< samples before first_sample that are still due
};

/// Calls Corpus::resume() with a state that was read from `path`; errors name the path.
StartPoint resume(Corpus& corpus, std::string_view state, const std::string& path);

struct StateOptions {
  std::string path;        ///< empty to keep no state
  std::int64_t every = 0;  ///< steps between two files; 0 to write one only in save()
  Duration timeout{};      ///< for waiting for the other ranks
};

/// Keeps the state after the last used batch; rank 0 writes it. One thread at a time.
class StateKeeper {
 public:
  /// `state` is the state before the first step. Options must be the same on all ranks.
  StateKeeper(Engine& engine, StateOptions options, Bytes state)
      : engine_(engine), options_(std::move(options)), state_(std::move(state)) {}

  /// Records that the batch of `step` has been used. Every `every` steps, waits until all ranks have used it and writes
  /// the state: no rank then lags the state on disk, so a job that resumes from it skips no sample. Collective. Throws
  /// SourceError if the file cannot be written.
  void passed(std::int64_t step, const Bytes& state);
  /// Replaces the file atomically: it holds either this state or its previous content.
  void save();

 private:
  Engine& engine_;
  StateOptions options_;
  Bytes state_;
};

/// Blocks SIGTERM in this thread and in all threads that it starts later, so that a TerminationWatch receives it.
void hold_termination();

/// Calls `stop` once, on a separate thread, when SIGTERM arrives. Does nothing unless hold_termination() was called.
class TerminationWatch {
 public:
  explicit TerminationWatch(std::function<void()> stop);
  ~TerminationWatch();
  TerminationWatch(const TerminationWatch&) = delete;
  TerminationWatch& operator=(const TerminationWatch&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace levada::cli
