#include "levada/engine/mpi/host_watch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "levada/base/error.h"

namespace levada::mpi {
namespace {

using Address = HostWatch::Place::Address;

constexpr Address ipv4_prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_ipv4(const Address& address) {
  return std::equal(ipv4_prefix.begin(), ipv4_prefix.begin() + 12, address.begin());
}

std::string text_of(const Address& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_short = is_ipv4(address);
  ::inet_ntop(is_short ? AF_INET : AF_INET6, address.data() + (is_short ? 12 : 0), text.data(), text.size());
  return text.data();
}

/// Of the interfaces that are up, by which others may reach this host. Those of IPv4 come first.
std::vector<Address> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<Address> ipv4, ipv6;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    Address address = ipv4_prefix;
    if (each->ifa_addr->sa_family == AF_INET) {
      const in_addr& it = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
      std::memcpy(address.data() + 12, &it, sizeof it);  // not payload: an address
      ipv4.push_back(address);
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& it = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr;
      std::memcpy(address.data(), &it, sizeof it);  // not payload: an address
      if (!IN6_IS_ADDR_LINKLOCAL(&it)) ipv6.push_back(address);
    }
  }
  ipv4.insert(ipv4.end(), ipv6.begin(), ipv6.end());
  return ipv4;
}

/// A socket that listens at any port of all addresses.
UniqueFd open_listener(int family) {
  UniqueFd listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener) return {};
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  const int off = 0;
  if (family == AF_INET6) ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  const socklen_t bytes = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  constexpr int max_hosts = 1 << 14;
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&any), bytes) != 0) return {};
  if (::listen(listener.get(), max_hosts) != 0) return {};
  return listener;
}

std::uint16_t port_of(int listener) {
  sockaddr_storage here{};
  socklen_t bytes = sizeof here;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&here), &bytes);
  return ntohs(here.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(here).sin6_port
                                          : reinterpret_cast<const sockaddr_in&>(here).sin_port);
}

/// A connection under way; empty where none can be made.
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
  const bool has_begun =
      ::connect(connection.get(), reinterpret_cast<const sockaddr*>(&there), bytes) == 0 || errno == EINPROGRESS;
  return has_begun ? std::move(connection) : UniqueFd();
}

int error_of(int connection) {
  int error = 0;
  socklen_t bytes = sizeof error;
  return ::getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

/// Lets the system probe the other end at even intervals. The connection ends if none of the probes of at least
/// `seconds` is answered, and of two intervals more at most: an end that answers again by then is not lost, whenever in
/// an interval it fell silent.
void keep_alive(int connection, int seconds) {
  constexpr int max_probes = 127;  // the largest TCP_KEEPCNT that Linux accepts
  const auto divide = [](int a, int b) { return (a + b - 1) / b; };
  const int interval = divide(seconds, max_probes - 1), probes = divide(seconds, interval) + 1, on = 1;
  ::setsockopt(connection, IPPROTO_TCP, TCP_KEEPIDLE, &interval, sizeof interval);
  ::setsockopt(connection, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(connection, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(connection, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/// Returns how long ago the other end of a connection last answered.
Duration silent_for(int connection) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  ::getsockopt(connection, IPPROTO_TCP, TCP_INFO, &info, &bytes);
  return std::chrono::milliseconds(info.tcpi_last_ack_recv);
}

/// Returns this host's address of a connection.
std::string own_address_of(int connection) {
  sockaddr_storage here{};
  socklen_t bytes = sizeof here;
  ::getsockname(connection, reinterpret_cast<sockaddr*>(&here), &bytes);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const address = here.ss_family == AF_INET6
                                  ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(here).sin6_addr)
                                  : &reinterpret_cast<const sockaddr_in&>(here).sin_addr;
  ::inet_ntop(here.ss_family, address, text.data(), text.size());
  return text.data();
}

/// Connections under way to several addresses of one host, of which the first to succeed is kept.
struct Attempt {
  std::vector<std::pair<std::string, UniqueFd>> connections;
  std::string address;
  UniqueFd connected;

  /// Returns whether it has ended, well or not.
  bool has_ended() const { return connected || connections.empty(); }
  void poll() {
    for (auto& [text, connection] : connections) {
      pollfd it{.fd = connection.get(), .events = POLLOUT};
      if (connected || ::poll(&it, 1, 0) <= 0) continue;
      if (error_of(connection.get()) == 0) {
        address = text;
        connected = std::move(connection);
      }
      connection = UniqueFd();
    }
    std::erase_if(connections, [](const auto& each) { return !each.second; });
  }
};

}  // namespace

HostWatch::HostWatch() : listener_(open_listener(AF_INET6)) {
  if (!listener_) listener_ = open_listener(AF_INET);
  if (!listener_) throw EngineError(fmt::format("this host gives no TCP port to listen at: {}", std::strerror(errno)));
  const auto addresses = own_addresses();
  place_.num_addresses = static_cast<std::uint32_t>(std::min(addresses.size(), place_.addresses.size()));
  for (std::size_t i = 0; i < place_.num_addresses; ++i) place_.addresses[i] = addresses[i];
  place_.port = port_of(listener_.get());
}

void HostWatch::connect(const std::vector<Place>& places, int rank, const std::vector<int>& host_of, int seconds,
                        Deadline deadline) {
  std::map<int, std::vector<int>> ranks_of;
  for (int each = 0; each < static_cast<int>(host_of.size()); ++each) {
    ranks_of[host_of[static_cast<std::size_t>(each)]].push_back(each);
  }
  const int host = host_of[static_cast<std::size_t>(rank)];
  const auto& here = ranks_of.at(host);
  const auto index = static_cast<std::size_t>(std::find(here.begin(), here.end(), rank) - here.begin());
  // Not an address that this host has too, such as one of a container's bridge.
  const auto own = own_addresses();
  std::map<int, Attempt> attempts;
  for (const auto& [other, ranks] : ranks_of) {
    if (other == host) continue;
    Attempt& attempt = attempts[other];
    const Place& there = places[static_cast<std::size_t>(ranks[index % ranks.size()])];
    for (std::size_t i = 0; i < there.num_addresses; ++i) {
      const Address& address = there.addresses[i];
      if (std::find(own.begin(), own.end(), address) != own.end()) continue;
      auto connection = begin_to_connect(address, static_cast<std::uint16_t>(there.port));
      if (connection) attempt.connections.emplace_back(text_of(address), std::move(connection));
    }
  }
  const auto has_ended = [](const auto& attempt) { return attempt.second.has_ended(); };
  while (!std::all_of(attempts.begin(), attempts.end(), has_ended) && !deadline.expired()) {
    std::vector<pollfd> waiting;
    for (const auto& [other, attempt] : attempts) {
      for (const auto& each : attempt.connections) {
        if (!attempt.connected) waiting.push_back({.fd = each.second.get(), .events = POLLOUT});
      }
    }
    ::poll(waiting.data(), waiting.size(), 100);
    for (auto& [other, attempt] : attempts) attempt.poll();
  }
  const std::lock_guard lock(mutex_);
  for (auto& [other, attempt] : attempts) {
    const auto& ranks = ranks_of.at(other);
    if (!attempt.connected) {
      const Place& there = places[static_cast<std::size_t>(ranks[index % ranks.size()])];
      std::vector<std::string> addresses;
      for (std::size_t i = 0; i < there.num_addresses; ++i) addresses.push_back(text_of(there.addresses[i]));
      throw EngineError(fmt::format(
          "rank {} cannot connect to the host of rank {} by TCP, at any of [{}], to see whether it answers: "
          "see whether a firewall lies between them, or set LEVADA_SILENCE=0 to do without",
          rank, ranks.front(), fmt::join(addresses, ", ")));
    }
    keep_alive(attempt.connected.get(), seconds);
    watched_.push_back(
        {.connection = std::move(attempt.connected), .address = std::move(attempt.address), .ranks = ranks});
  }
}

std::vector<HostWatch::Silence> HostWatch::silences() {
  const std::lock_guard lock(mutex_);
  for (Watched& each : watched_) {
    pollfd it{.fd = each.connection.get(), .events = 0};
    if (!each.connection || ::poll(&it, 1, 0) <= 0) continue;
    const UniqueFd connection = std::move(each.connection);
    const int error = error_of(connection.get());
    // Else the process has ended, which is the launcher's affair.
    if (error != ETIMEDOUT && error != EHOSTUNREACH && error != ENETUNREACH) continue;
    silences_.push_back(
        {.ranks = each.ranks,
         .text = fmt::format("host {}, which has ranks {}, has not answered host {} for {}", each.address,
                             fmt::join(each.ranks, ", "), own_address_of(connection.get()),
                             format_duration(silent_for(connection.get())))});
  }
  return silences_;
}

}  // namespace levada::mpi
