#include "levada/engine/joined/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace levada::joined {
namespace {

const std::vector<int> two_each{0, 0, 1, 1, 2, 2};

TEST(Route, StaysOnTheHostIfAllReceiversAreThere) {
  const Route sender = route_of(two_each, 0, 0, std::vector{1}, 16),
              receiver = route_of(two_each, 1, 0, std::vector{1}, 16);
  EXPECT_EQ(sender, (Route{.near = {0, {1}}, .incoming = {}, .outgoing = {}}));
  EXPECT_EQ(receiver, sender);
}

TEST(Route, ReachesEveryOtherHostOnce) {
  const std::vector to{5, 4, 3, 2, 1, 0};
  EXPECT_EQ(route_of(two_each, 0, 0, to, 16), (Route{{0, {0, 1}}, {}, {0, {2, 4}}}));
  EXPECT_EQ(route_of(two_each, 1, 0, to, 16), (Route{{0, {0, 1}}, {}, {}}));
  EXPECT_EQ(route_of(two_each, 2, 0, to, 16), (Route{{2, {2, 3}}, {0, {2, 4}}, {}}));
  EXPECT_EQ(route_of(two_each, 5, 0, to, 16), (Route{{4, {4, 5}}, {}, {}}));
}

TEST(Route, NeedsNoForwardingForTheOnlyReceiverOnAHost) {
  const Route route = route_of(two_each, 3, 0, std::vector{3}, 16);
  EXPECT_EQ(route, (Route{{}, {0, {3}}, {}}));
  EXPECT_FALSE(route.forwards());
}

TEST(Route, MaySkipTheSendersHost) {
  EXPECT_EQ(route_of(two_each, 0, 0, std::vector{2, 3}, 16), (Route{{}, {}, {0, {2}}}));
}

TEST(Route, IsATreeIfThereAreManyHosts) {
  const std::vector host_of{0, 1, 2, 3};
  const std::vector to{0, 1, 2, 3};
  EXPECT_EQ(route_of(host_of, 1, 0, to, 2), (Route{{1, {1}}, {0, {1, 2}}, {1, {3}}}));
  EXPECT_EQ(route_of(host_of, 2, 0, to, 2), (Route{{}, {0, {1, 2}}, {}}));
}

TEST(Route, NamesTheForwarder) {
  const std::vector host_of{0, 0, 1, 1, 2, 3}, to{1, 2, 3, 4, 5};
  const auto forwarder = [&](int rank) { return route_of(host_of, rank, 0, to, 2).forwarder(rank, 0); };
  EXPECT_EQ(forwarder(1), -1) << "the sender's host";
  EXPECT_EQ(forwarder(2), -1) << "it sends on itself";
  EXPECT_EQ(forwarder(3), 2) << "on its host";
  EXPECT_EQ(forwarder(4), -1) << "from the sender";
  EXPECT_EQ(forwarder(5), 2) << "in the tree";
  EXPECT_EQ(route_of(host_of, 2, 0, to, 2).forwards_to(2), (std::vector{3, 5}));
}

/// Follows all hops that the members of a channel have opened. Returns how often each receiver gets a message.
std::map<int, int> deliveries(const std::vector<int>& host_of, int from, const std::vector<int>& to, int degree) {
  std::set<int> members(to.begin(), to.end());
  members.insert(from);
  std::map<int, Route> routes;
  for (const int rank : members) routes[rank] = route_of(host_of, rank, from, to, degree);
  std::map<int, int> seen;
  std::vector<int> holders{from};
  while (!holders.empty()) {
    const int holder = holders.back();
    holders.pop_back();
    const Route& route = routes.at(holder);
    EXPECT_LE(route.outgoing.to.size(), static_cast<std::size_t>(degree));
    for (const int next : route.outgoing.to) {
      EXPECT_EQ(routes.at(next).incoming, route.outgoing) << "all members open the same hop";
      if (routes.at(next).forwards()) holders.push_back(next);
      else ++seen[next];
    }
    if (route.near.from != holder) continue;
    for (const int receiver : route.near.to) {
      EXPECT_EQ(routes.at(receiver).near, route.near) << "all members open the same hop";
      ++seen[receiver];
    }
  }
  return seen;
}

TEST(Route, DeliversEachMessageToEachReceiverOnce) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 2000; ++trial) {
    const int size = 1 + static_cast<int>(random() % 20), hosts = 1 + static_cast<int>(random() % 8);
    std::vector<int> host_of, to;
    for (int rank = 0; rank < size; ++rank) {
      host_of.push_back(static_cast<int>(random()) % hosts);
      if (random() % 2 == 0) to.push_back(rank);
    }
    for (int& host : host_of) host = (host + hosts) % hosts;
    if (to.empty()) to.push_back(0);
    std::shuffle(to.begin(), to.end(), random);
    std::map<int, int> once;
    for (const int receiver : to) once[receiver] = 1;
    EXPECT_EQ(deliveries(host_of, static_cast<int>(random() % static_cast<unsigned>(size)), to,
                         1 + static_cast<int>(random() % 4)),
              once);
  }
}

}  // namespace
}  // namespace levada::joined
