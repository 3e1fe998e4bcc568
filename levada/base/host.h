// Which processes are on one host, and its name.
#pragma once

#include <cstdint>
#include <string>

namespace levada {

/// Returns the host's name, for people; empty if it has none.
std::string host_name();

/// The same number in processes that can share memory: of one user, under one kernel (boot id) and in one network
/// namespace. Where /proc does not say, as in some sandboxes, the host's name distinguishes them.
std::uint64_t host_identity();

}  // namespace levada
