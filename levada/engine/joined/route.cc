#include "levada/engine/joined/route.h"

#include <algorithm>
#include <cstddef>

namespace levada::joined {
namespace {

/// Returns the sender and then the first receiver on each other host. They form a heap: the children of entry i are the
/// entries from i * degree + 1 to (i + 1) * degree.
std::vector<int> forwarders_of(std::span<const int> host_of, int from, std::span<const int> sorted) {
  std::vector<int> forwarders{from};
  std::vector<int> hosts{host_of[static_cast<std::size_t>(from)]};
  for (const int receiver : sorted) {
    const int host = host_of[static_cast<std::size_t>(receiver)];
    if (std::find(hosts.begin(), hosts.end(), host) != hosts.end()) continue;
    hosts.push_back(host);
    forwarders.push_back(receiver);
  }
  return forwarders;
}

Hop hop_from(std::span<const int> forwarders, std::size_t parent, std::size_t degree) {
  const std::size_t begin = std::min(forwarders.size(), parent * degree + 1);
  const std::size_t end = std::min(forwarders.size(), begin + degree);
  return {.from = forwarders[parent],
          .to = {forwarders.begin() + static_cast<std::ptrdiff_t>(begin),
                 forwarders.begin() + static_cast<std::ptrdiff_t>(end)}};
}

}  // namespace

std::vector<int> Route::forwards_to(int rank) const {
  std::vector<int> ranks = near.to;
  std::erase(ranks, rank);
  ranks.insert(ranks.end(), outgoing.to.begin(), outgoing.to.end());
  return ranks;
}

int Route::forwarder(int rank, int from) const {
  const Hop& received = near ? near : incoming;
  return received && received.from != from && received.from != rank ? received.from : -1;
}

Route route_of(std::span<const int> host_of, int rank, int from, std::span<const int> to, int degree) {
  std::vector<int> sorted(to.begin(), to.end());
  std::sort(sorted.begin(), sorted.end());
  const auto host = [&](int of) { return host_of[static_cast<std::size_t>(of)]; };
  const std::vector<int> forwarders = forwarders_of(host_of, from, sorted);
  const auto mine =
      std::find_if(forwarders.begin(), forwarders.end(), [&](int each) { return host(each) == host(rank); });
  const auto place = static_cast<std::size_t>(mine - forwarders.begin());
  const auto fan_out = static_cast<std::size_t>(degree);

  Route route;
  if (rank == *mine) {
    if (place != 0) route.incoming = hop_from(forwarders, (place - 1) / fan_out, fan_out);
    route.outgoing = hop_from(forwarders, place, fan_out);
    if (!route.outgoing) route.outgoing = {};
  }
  route.near.from = *mine;
  std::copy_if(sorted.begin(), sorted.end(), std::back_inserter(route.near.to),
               [&](int receiver) { return host(receiver) == host(rank); });
  // A rank that is the only receiver on its host and does not forward receives directly on the incoming hop.
  const bool is_alone = route.near.to == std::vector{rank} && route.incoming && !route.outgoing;
  if (is_alone || !route.near) route.near = {};
  return route;
}

}  // namespace levada::joined
