// Addresses and sockets of TCP, for the connections by which hosts watch each other.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "levada/base/unique_fd.h"

namespace levada::mpi {

/// An address of IPv6, or one of IPv4 mapped into it.
using Address = std::array<std::uint8_t, 16>;

std::string text_of(const Address& address);

/// Returns the addresses of the interfaces that are up, by which others may reach this host. Those of IPv4 come first.
std::vector<Address> own_addresses();
/// Returns a socket that listens at a port of all addresses and does not block. Throws EngineError, with the system's
/// error, if there is none.
UniqueFd listen_at_any_port();
std::uint16_t port_of(int listener);
/// Returns a connection under way, which does not block; empty, with errno set, if none can be begun.
UniqueFd begin_to_connect(const Address& address, std::uint16_t port);
/// Returns the error with which a connection has ended, or could not be made; 0 for none.
int error_of(int connection);
Address own_address_of(int connection);
Address peer_address_of(int connection);

}  // namespace levada::mpi
