// The Engine over any Endpoint.
#pragma once

#include <memory>
#include <string_view>

#include "levada/engine/endpoint.h"
#include "levada/engine/engine.h"

namespace levada {

/// Returns this rank's engine over all ranks of the endpoint's medium. `name` distinguishes its channels from those of
/// other groups of all ranks.
std::shared_ptr<Engine> make_engine(std::shared_ptr<Endpoint> endpoint, std::string_view name);
/// Returns the endpoint of an engine that make_engine() made, or null for any other engine.
Endpoint* endpoint_of(Engine& engine);

}  // namespace levada
