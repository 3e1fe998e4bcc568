#include "levada/engine/mpi/tcp.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "levada/base/error.h"

namespace levada::mpi {
namespace {

constexpr Address ipv4_prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_ipv4(const Address& address) {
  return std::equal(ipv4_prefix.begin(), ipv4_prefix.begin() + 12, address.begin());
}

/// Returns the address in an IPv4 or IPv6 socket address.
Address address_in(const sockaddr* socket_address) {
  Address address = ipv4_prefix;
  if (socket_address->sa_family == AF_INET6) {
    const in6_addr& it = reinterpret_cast<const sockaddr_in6*>(socket_address)->sin6_addr;
    std::memcpy(address.data(), &it, sizeof it);  // not payload: an address
  } else {
    const in_addr& it = reinterpret_cast<const sockaddr_in*>(socket_address)->sin_addr;
    std::memcpy(address.data() + 12, &it, sizeof it);  // not payload: an address
  }
  return address;
}

/// Returns a listening socket; empty, with errno set, if the system refuses it.
UniqueFd try_to_listen(int family) {
  UniqueFd listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return {};
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  const int off = 0;
  if (family == AF_INET6) ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  const socklen_t bytes = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  const bool listens = ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&any), bytes) == 0 &&
                       ::listen(listener.get(), SOMAXCONN) == 0;
  if (listens) return listener;
  const int error = errno;
  listener = {};
  errno = error;
  return {};
}

}  // namespace

std::string text_of(const Address& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_short = is_ipv4(address);
  ::inet_ntop(is_short ? AF_INET : AF_INET6, address.data() + (is_short ? 12 : 0), text.data(), text.size());
  return text.data();
}

std::vector<Address> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<Address> ipv4, ipv6;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (each->ifa_addr->sa_family == AF_INET) ipv4.push_back(address_in(each->ifa_addr));
    if (each->ifa_addr->sa_family != AF_INET6) continue;
    const Address address = address_in(each->ifa_addr);
    const bool is_link_local = address[0] == 0xfe && (address[1] & 0xc0) == 0x80;
    if (!is_link_local) ipv6.push_back(address);
  }
  ipv4.insert(ipv4.end(), ipv6.begin(), ipv6.end());
  return ipv4;
}

UniqueFd listen_at_any_port() {
  for (const int family : {AF_INET6, AF_INET}) {
    if (UniqueFd listener = try_to_listen(family)) return listener;
  }
  throw EngineError(fmt::format("cannot listen on a TCP port of this host: {}", std::strerror(errno)));
}

std::uint16_t port_of(int listener) {
  sockaddr_storage here{};
  socklen_t bytes = sizeof here;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&here), &bytes);
  return ntohs(here.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(here).sin6_port
                                          : reinterpret_cast<const sockaddr_in&>(here).sin_port);
}

UniqueFd begin_to_connect(const Address& address, std::uint16_t port) {
  sockaddr_storage there{};
  socklen_t bytes = 0;
  if (is_ipv4(address)) {
    auto& it = reinterpret_cast<sockaddr_in&>(there);
    it.sin_family = AF_INET;
    it.sin_port = htons(port);
    std::memcpy(&it.sin_addr, address.data() + 12, sizeof it.sin_addr);  // not payload: an address
    bytes = sizeof it;
  } else {
    auto& it = reinterpret_cast<sockaddr_in6&>(there);
    it.sin6_family = AF_INET6;
    it.sin6_port = htons(port);
    std::memcpy(&it.sin6_addr, address.data(), sizeof it.sin6_addr);  // not payload: an address
    bytes = sizeof it;
  }
  UniqueFd connection(::socket(there.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection) return {};
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&there), bytes) == 0) return connection;
  if (errno == EINPROGRESS) return connection;
  const int error = errno;
  connection = {};
  errno = error;
  return {};
}

int error_of(int connection) {
  int error = 0;
  socklen_t bytes = sizeof error;
  return ::getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

Address own_address_of(int connection) {
  sockaddr_storage here{};
  socklen_t bytes = sizeof here;
  ::getsockname(connection, reinterpret_cast<sockaddr*>(&here), &bytes);
  return address_in(reinterpret_cast<const sockaddr*>(&here));
}

Address peer_address_of(int connection) {
  sockaddr_storage there{};
  socklen_t bytes = sizeof there;
  ::getpeername(connection, reinterpret_cast<sockaddr*>(&there), &bytes);
  return address_in(reinterpret_cast<const sockaddr*>(&there));
}

}  // namespace levada::mpi
