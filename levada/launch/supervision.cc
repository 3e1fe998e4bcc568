#include "levada/launch/supervision.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

namespace levada::launch {

void Supervision::apply(const Ended& event) {
  auto& rank = ranks_[static_cast<std::size_t>(event.rank)];
  if (rank.wait_status) return;
  rank.wait_status = event.wait_status;
  order_.push_back(event.rank);
  ++ended_;
  if (event.wait_status != 0) failing_ = true;
}

void Supervision::apply(Reported event) {
  reports_.push_back(std::move(event));
  failing_ = true;
}

void Supervision::apply(const Signalled& event) {
  if (signal_ == 0) signal_ = event.signal;
}

void Supervision::apply(const Killed&) {
  for (auto& rank : ranks_) rank.killed_here = rank.killed_here || !rank.wait_status;
}

LocalResult Supervision::result() const {
  if (signal_ != 0) return {.exit_status = 128 + signal_, .first_failed = {}, .message = {}};
  if (auto result = killed_rank()) return *result;
  if (auto result = reported(false)) return *result;
  if (auto result = bad_status()) return *result;
  if (auto result = reported(true)) return *result;
  return {};
}

/// Returns the signal that ended `rank`; 0 if none did, or if this process sent it.
int Supervision::own_signal_of(int rank) const {
  const auto& state = ranks_[static_cast<std::size_t>(rank)];
  const int status = state.wait_status.value_or(0);
  if (!WIFSIGNALED(status) || (state.killed_here && WTERMSIG(status) == SIGKILL)) return 0;
  return WTERMSIG(status);
}

std::optional<LocalResult> Supervision::killed_rank() const {
  for (const int rank : order_) {
    const int signal = own_signal_of(rank);
    if (signal == 0) continue;
    if (signal == SIGPIPE) return LocalResult{.exit_status = 128 + SIGPIPE, .first_failed = rank, .message = {}};
    std::string_view hint;
    if (signal == SIGKILL) hint = "; if no user killed it, the kernel did because memory ran out: see dmesg";
    if (signal == SIGXFSZ) hint = "; a file would have become larger than ulimit -f allows";
    return LocalResult{.exit_status = 1,
                       .first_failed = rank,
                       .message = fmt::format("rank {} was lost: killed by signal {} ({}){}", rank, signal,
                                              ::strsignal(signal), hint)};
  }
  return {};
}

std::optional<LocalResult> Supervision::reported(bool peer_lost) const {
  for (const auto& report : reports_) {
    if ((report.kind == ErrorKind::peer_lost) != peer_lost) continue;
    const int status = ranks_[static_cast<std::size_t>(report.rank)].wait_status.value_or(0);
    const bool own_status = WIFEXITED(status) && WEXITSTATUS(status) != 0;
    // A rank that was killed before it could exit would have exited with this status.
    const int meant_status = report.kind == ErrorKind::invalid_argument ? 2 : 1;
    return LocalResult{.exit_status = own_status ? WEXITSTATUS(status) : meant_status,
                       .first_failed = report.rank,
                       .message = report.message};
  }
  return {};
}

/// Returns the result for the first rank that ended with a bad status and without a report. It takes precedence over
/// ranks that only saw another rank end.
std::optional<LocalResult> Supervision::bad_status() const {
  for (const int rank : order_) {
    const int status = ranks_[static_cast<std::size_t>(rank)].wait_status.value_or(0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0) continue;
    bool has_reported = false;
    for (const auto& report : reports_) has_reported = has_reported || report.rank == rank;
    if (has_reported) continue;
    return LocalResult{.exit_status = WEXITSTATUS(status),
                       .first_failed = rank,
                       .message = fmt::format("rank {} ended with status {}", rank, WEXITSTATUS(status))};
  }
  return {};
}

}  // namespace levada::launch
