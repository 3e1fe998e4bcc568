#include "levada/engine/mpi/host_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <map>
#include <utility>

namespace levada::mpi {
namespace {

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

/// Seconds between two probes.
int probe_interval(int seconds) {
  constexpr int max_probes = 127;  // the largest TCP_KEEPCNT that Linux accepts
  return divide_up(seconds, max_probes - 1);
}

/// Makes the kernel probe the other end at even intervals. The connection ends once probes have been unanswered for at
/// least `seconds`, and for at most two intervals more. An end that answers again before `seconds` have passed is not
/// lost, regardless of when in an interval it fell silent.
void keep_alive(int connection, int seconds) {
  const int interval = probe_interval(seconds), probes = divide_up(seconds, interval) + 1, on = 1;
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

std::string name_ranks(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

/// Returns the ranks of each host. `host_of` numbers the hosts from 0.
std::vector<std::vector<int>> ranks_by_host(const std::vector<int>& host_of) {
  std::vector<std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    const auto host = static_cast<std::size_t>(host_of[rank]);
    if (host >= ranks_of.size()) ranks_of.resize(host + 1);
    ranks_of[host].push_back(static_cast<int>(rank));
  }
  return ranks_of;
}

/// Returns the rank of `host` that watches the host `other`.
int watcher_of(const std::vector<std::vector<int>>& ranks_of, std::size_t host, std::size_t other) {
  const auto& ranks = ranks_of[host];
  return ranks[other % ranks.size()];
}

}  // namespace

HostWatch::HostWatch(const Secret& secret, int rank, const std::vector<int>& host_of)
    : secret_(secret),
      rank_(rank),
      host_(static_cast<std::size_t>(host_of[static_cast<std::size_t>(rank)])),
      ranks_of_(ranks_by_host(host_of)),
      acceptor_(secret, rank) {}

void HostWatch::connect(const std::vector<Place>& places, Deadline deadline) {
  std::map<int, Place> callees;
  for (std::size_t other = host_ + 1; other < ranks_of_.size(); ++other) {
    if (watcher_of(ranks_of_, host_, other) != rank_) continue;
    const int callee = watcher_of(ranks_of_, other, host_);
    callees[callee] = places[static_cast<std::size_t>(callee)];
  }
  called_ = call_all(callees, secret_, rank_, deadline);
}

void HostWatch::start(int seconds) {
  std::vector<HostLink> links = acceptor_.stop();
  std::move(called_.begin(), called_.end(), std::back_inserter(links));
  const std::lock_guard lock(mutex_);
  silence_ = std::chrono::seconds(seconds);
  interval_ = std::chrono::seconds(probe_interval(seconds));
  for (HostLink& link : links) {
    const auto ranks = std::ranges::find_if(
        ranks_of_, [&](const std::vector<int>& each) { return std::ranges::find(each, link.rank) != each.end(); });
    if (ranks == ranks_of_.end()) continue;
    keep_alive(link.connection.get(), seconds);
    const Address address = peer_address_of(link.connection.get());
    watched_.push_back({.connection = std::move(link.connection), .address = address, .ranks = *ranks});
  }
}

std::size_t HostWatch::num_watched() {
  const std::lock_guard lock(mutex_);
  return watched_.size();
}

bool HostWatch::has_ended(WatchedHost& watched, bool looks) {
  pollfd it{.fd = watched.connection.get(), .events = 0};
  if (::poll(&it, 1, 0) > 0) return true;
  if (!looks) return false;
  const bool was_overdue = std::exchange(watched.is_overdue, silent_for(it.fd) > 3 * interval_ + silence_);
  return was_overdue && watched.is_overdue;
}

std::vector<HostWatch::Silence> HostWatch::silences() {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const bool looks = now >= next_look_;
  if (looks) next_look_ = now + interval_;
  for (WatchedHost& each : watched_) {
    if (!each.connection || !has_ended(each, looks)) continue;
    const UniqueFd connection = std::move(each.connection);
    const int error = error_of(connection.get());
    const bool is_silent = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || each.is_overdue;
    if (!is_silent) continue;  // the process has ended, which the launcher handles
    silences_.push_back({.ranks = each.ranks,
                         .text = fmt::format("its host {} ({}) has not answered host {} for {}", text_of(each.address),
                                             name_ranks(each.ranks), text_of(own_address_of(connection.get())),
                                             format_duration(silent_for(connection.get())))});
  }
  return silences_;
}

}  // namespace levada::mpi
