// The identity of the host that a process runs on, and its name.
#pragma once

#include <cstdint>
#include <string>

namespace levada {

/// Returns a number that is the same in all processes that can share memory: those of one user, under one kernel (boot
/// id), in one network namespace. Falls back to the host's name if /proc is not readable, as in some sandboxes.
std::uint64_t host_identity();

/// Returns this host's name; empty if it has none.
std::string host_name();

/// Returns the user id that the system reports for all users that are not mapped into this process's user namespace. It
/// therefore identifies no particular user.
std::uint32_t overflow_uid();

}  // namespace levada
