// An engine whose waits look up now and then: for callers that have to hear of signals while they wait.
#pragma once

#include <functional>
#include <memory>

#include "levada/engine/engine.h"

namespace levada {

/// `engine` by another handle: the same member of the same group, the same channels and blocks. Its wait() calls `poll`
/// on the waiting thread, about twenty times a second; what that throws ends the wait, and with it the call that waits.
/// The peers of such a call wait on, unless they are told (Engine::abort()). Engines made of it do the same.
std::shared_ptr<Engine> polled(std::shared_ptr<Engine> engine, std::function<void()> poll);

}  // namespace levada
