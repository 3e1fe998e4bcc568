// The Engine of a group of ranks of this host.
#pragma once

#include <memory>

#include "levada/engine/engine.h"
#include "levada/engine/shm/member.h"

namespace levada::shm {

/// The engine of all ranks of the host. `member` watches already, or will before the ranks use it.
std::shared_ptr<Engine> make_engine(std::shared_ptr<Member> member);

}  // namespace levada::shm
