// How the ranks of a host come to share memory: rank 0 gathers the others, makes the control memory, and hands round
// what each has. Any end of any rank on the way is told to all.
#pragma once

#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/unique_fd.h"
#include "levada/engine/shm/endpoint.h"
#include "levada/engine/shm/shm.h"
#include "levada/engine/shm/start_frames.h"

namespace levada::shm {

/// Ranks that are connected to rank 0. `links` as for join(); `hellos` holds what they have said already: an entry a
/// rank or none at all.
struct Connected {
  std::vector<UniqueFd> links;
  std::vector<Hello> hellos;
};

/// Collective. All ranks are alive, and watched by one another, when it returns.
std::shared_ptr<ShmEndpoint> start(int rank, int size, Connected connected, const Options& options, Deadline deadline);

/// Rank 0 of meet(): all other ranks, with their hellos.
Connected gather(int size, const std::string& rendezvous, const Options& options, Deadline deadline);
/// The others: a link to rank 0, which expects a hello.
Connected find(int rank, const std::string& rendezvous, const Options& options, Deadline deadline);

/// How long a start that fails tells ranks that come late.
inline constexpr Duration time_for_late_ranks = std::chrono::seconds(5);

/// Rank 0 of a start that fails before it begins: tells `cause` to the ranks that come until all have.
void turn_away(int size, const std::string& rendezvous, const StartFailure& cause, Deadline deadline);
/// Another rank of such a start: tells rank 0. Whether it could.
bool tell_rank_zero(int rank, const std::string& rendezvous, const StartFailure& cause, Deadline deadline) noexcept;

}  // namespace levada::shm
