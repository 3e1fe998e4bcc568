// How the ranks of a host come to share memory: rank 0 gathers the others, makes all files and passes them on. If a
// rank ends on the way, all others get an error that names it.
#pragma once

#include <vector>

#include "levada/base/deadline.h"
#include "levada/engine/shm/endpoint.h"
#include "levada/engine/shm/shm.h"
#include "levada/engine/shm/start_frames.h"
#include "levada/engine/shm/start_link.h"

namespace levada::shm {

/// Ranks that are connected to rank 0. `links` as for join(); `hellos` holds what they have sent already: one per
/// rank, or none at all.
struct Connected {
  std::vector<StartLink> links;
  std::vector<Hello> hellos;
};

/// Descriptors that a rank needs to start: a link and a data file for each rank, and what all ranks have one of.
constexpr std::size_t num_files_to_start(int size) {
  return 2 * static_cast<std::size_t>(size) + 16;
}

/// Collective. When it returns, all ranks are alive and watch one another.
std::shared_ptr<ShmEndpoint> start(int rank, int size, Connected connected, const Options& options, Deadline deadline);

/// Rank 0 of meet(): all other ranks, with their hellos.
Connected gather(int size, const MeetingPlace& place, const Options& options, Deadline deadline);
/// The others: a link to rank 0, whose ends have greeted each other, and on which rank 0 expects a hello.
Connected find(int rank, const MeetingPlace& place, const Options& options, Deadline deadline);

/// How long rank 0 of a start that has failed waits for late ranks, to send them the failure.
inline constexpr Duration time_for_late_ranks = std::chrono::seconds(5);

/// Rank 0 of a start that fails before it begins: sends `cause` to the ranks that come, until all have.
void reject_ranks(int size, const MeetingPlace& place, const StartFailure& cause, Deadline deadline);
/// Another rank of such a start: sends `cause` to rank 0. Returns whether it could.
bool send_failure_to_rank_zero(int rank, const MeetingPlace& place, const StartFailure& cause,
                               Deadline deadline) noexcept;

}  // namespace levada::shm
