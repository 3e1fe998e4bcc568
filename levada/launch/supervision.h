// Decides how a job ends when its ranks end, fail or are killed. Works on events only, so it needs no processes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levada/base/error.h"

namespace levada::launch {

/// How a job on this host ended.
struct LocalResult {
  /// Exit status for the command: 0 if all ranks succeeded, the failed rank's own status, 1 for a rank that was killed,
  /// 128+N if signal N ended the job (SIGPIPE of a rank counts, because its output was closed).
  int exit_status = 0;
  std::optional<int> first_failed;  ///< the rank that caused the failure
  std::string message;              ///< the reason, in one sentence; empty if there is nothing to report
};

/// The state of a job under run_local(). Apply events in order, then query what to do. A value.
class Supervision {
 public:
  explicit Supervision(int size) : ranks_(static_cast<std::size_t>(size)) {}

  struct Ended {
    int rank = 0;
    int wait_status = 0;  ///< as returned by waitpid()
  };
  struct Reported {
    int rank = 0;
    ErrorKind kind = ErrorKind::engine;
    std::string message;
  };
  /// This process has received a signal that ends the job.
  struct Signalled {
    int signal = 0;
  };
  /// This process has killed the ranks that were still running.
  struct Killed {};

  void apply(const Ended& event);
  void apply(Reported event);
  void apply(const Signalled& event);
  void apply(const Killed& event);

  bool has_ended(int rank) const { return ranks_[static_cast<std::size_t>(rank)].wait_status.has_value(); }
  bool all_ended() const { return ended_ == ranks_.size(); }
  /// Returns whether the ranks that are still running should end.
  bool is_ending() const { return signal_ != 0 || failing_; }
  /// Returns the signal that ends the job, or 0 if none does.
  int signal() const { return signal_; }
  /// Returns the job's result. Call it when all ranks have ended. A killed rank takes precedence over a reported error,
  /// which takes precedence over the PeerLost of ranks that saw the failed rank end.
  LocalResult result() const;

 private:
  struct Rank {
    std::optional<int> wait_status;
    bool killed_here = false;
  };
  int own_signal_of(int rank) const;
  std::optional<LocalResult> killed_rank() const;
  std::optional<LocalResult> reported(bool peer_lost) const;
  std::optional<LocalResult> bad_status() const;

  std::vector<Rank> ranks_;
  std::vector<int> order_;  ///< ranks in the order in which they ended
  std::vector<Reported> reports_;
  std::size_t ended_ = 0;
  int signal_ = 0;
  bool failing_ = false;
};

}  // namespace levada::launch
