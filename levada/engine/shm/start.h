// Starts the ranks of a host: rank 0 gathers the other ranks, creates all files and distributes them. If a rank ends
// during the start, all others throw an error that names it.
#pragma once

#include <vector>

#include "levada/base/deadline.h"
#include "levada/engine/shm/endpoint.h"
#include "levada/engine/shm/shm.h"
#include "levada/engine/shm/start_frames.h"
#include "levada/engine/shm/start_link.h"

namespace levada::shm {

/// The connections between rank 0 and the other ranks. `links` is as in join(). `hellos` holds the hellos received so
/// far: one for each rank, or none.
struct StartConnections {
  std::vector<StartLink> links;
  std::vector<Hello> hellos;
};

/// Returns the number of descriptors that a rank needs to start: a link and a data file for each rank, plus a fixed
/// number.
constexpr std::size_t num_files_to_start(int size) {
  return 2 * static_cast<std::size_t>(size) + 16;
}

/// Starts the ranks. Collective. When it returns, all ranks are alive and watch one another.
std::shared_ptr<ShmEndpoint> start(int rank, int size, StartConnections connected, const Options& options,
                                   Deadline deadline);

/// Called by meet() on rank 0. Returns links to all other ranks, with their hellos.
StartConnections gather(int size, const MeetingPlace& place, const Options& options, Deadline deadline);
/// Called by meet() on the other ranks. Returns a link to rank 0. Its ends have greeted each other, and rank 0 expects
/// a hello next.
StartConnections find(int rank, const MeetingPlace& place, const Options& options, Deadline deadline);

/// How long rank 0 waits for late ranks after a failed start, to send them the failure.
inline constexpr Duration time_for_late_ranks = std::chrono::seconds(5);

/// Called on rank 0 if a start fails before it begins. Sends `cause` to the ranks as they arrive, until all have or the
/// deadline.
void reject_ranks(int size, const MeetingPlace& place, const StartFailure& cause, Deadline deadline);
/// Called on another rank if a start fails before it begins. Sends `cause` to rank 0. Returns whether it succeeded.
bool send_failure_to_rank_zero(int rank, const MeetingPlace& place, const StartFailure& cause,
                               Deadline deadline) noexcept;

}  // namespace levada::shm
