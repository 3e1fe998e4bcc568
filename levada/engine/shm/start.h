// How the ranks of a host come to share memory: rank 0 gathers the others, makes the control memory, and hands round
// what each has. Any end of any rank on the way is told to all.
#pragma once

#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/unique_fd.h"
#include "levada/engine/shm/member.h"
#include "levada/engine/shm/shm.h"

namespace levada::shm {

/// Collective. `links` as for join(). All ranks are alive, and watched by one another, when it returns.
std::shared_ptr<Member> start(int rank, int size, std::vector<UniqueFd> links, const Options& options,
                              Deadline deadline);

/// Rank 0 of meet(): one connected socket to each other rank; entry 0 holds none.
std::vector<UniqueFd> gather(int size, const std::string& meeting, Deadline deadline);
/// The others: a socket to rank 0.
UniqueFd find(int rank, int size, const std::string& meeting, Deadline deadline);

}  // namespace levada::shm
