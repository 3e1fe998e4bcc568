// TCP addresses and sockets, for the connections by which hosts watch each other.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "levada/base/unique_fd.h"

namespace levada::mpi {

/// An IPv6 address, or an IPv4 address mapped into IPv6.
using Address = std::array<std::uint8_t, 16>;

std::string text_of(const Address& address);

/// Returns the addresses at which other hosts may reach this one: those of its interfaces that are up. IPv4 addresses
/// come first.
std::vector<Address> own_addresses();
/// Returns a non-blocking socket that listens on all addresses, at a port that the system chooses. Throws EngineError
/// with the system's error if there is none.
UniqueFd listen_at_any_port();
std::uint16_t port_of(int listener);
/// Returns a non-blocking connection in progress, or an empty one, with errno set, if none can be started.
UniqueFd begin_to_connect(const Address& address, std::uint16_t port);
/// Returns the error with which a connection has ended or failed, or 0 if there is none.
int error_of(int connection);
Address own_address_of(int connection);
Address peer_address_of(int connection);

}  // namespace levada::mpi
