// Where a feed has come to, kept in a file; and stopping in good order when asked to.
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
/// Where a feed resumes.
struct StartPoint {
  std::int64_t first_sample = 0;
  std::vector<DelayedSample> delayed = {};  ///< before that
};

/// Corpus::resume() with a state of `path`, which errors name.
StartPoint resume(Corpus& corpus, std::string_view state, const std::string& path);

struct StateOptions {
  std::string path;        ///< empty to keep nothing
  std::int64_t every = 0;  ///< steps between two files; 0: only save() writes one
  Duration timeout{};      ///< of waiting for the other ranks
};

/// Keeps the state of the last batch that was used; rank 0 writes it. One thread at a time.
class StateKeeper {
 public:
  /// `state`: before the first step. Options are the same on all ranks.
  StateKeeper(Engine& engine, StateOptions options, Bytes state)
      : engine_(engine), options_(std::move(options)), state_(std::move(state)) {}

  /// The batch of `step` has been used. Every so often it waits until all ranks have used it, and writes the state: so
  /// no rank is behind a state that is on the disk, and a job that goes on there leaves out no sample. Collective.
  /// Throws SourceError where the file cannot be written.
  void passed(std::int64_t step, const Bytes& state);
  /// The file holds the state from then on, or what it held before.
  void save();

 private:
  Engine& engine_;
  StateOptions options_;
  Bytes state_;
};

/// Takes SIGTERM away from all threads that the caller starts from then on, so that a TerminationWatch hears of it.
void hold_termination();

/// While it lives, calls `stop` once when SIGTERM comes, on a thread of its own. Does nothing unless
/// hold_termination() was called.
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
