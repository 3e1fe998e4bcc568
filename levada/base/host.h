// Which processes are on one host, and its name.
#pragma once

#include <cstdint>
#include <string>

namespace levada {

/// The same number in processes that can share memory: of one user, under one kernel (boot id) and in one network
/// namespace. Where /proc does not say, as in some sandboxes, the host's name distinguishes them.
std::uint64_t host_identity();

/// This host's name; empty if it has none.
std::string host_name();

/// The user id as which the system shows all users that are not mapped into this process's user namespace. So it
/// identifies nobody.
std::uint32_t overflow_uid();

}  // namespace levada
