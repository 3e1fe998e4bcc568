// Hosts that watch each other, simulated by threads of one process.
#include "levada/engine/mpi/host_watch.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/host.h"
#include "levada/base/threads.h"

namespace levada::mpi {
namespace {

using std::chrono::milliseconds;

const Secret secret = random_secret();
constexpr Address loopback = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

/// Returns the place with an address at which other ranks of this process reach it.
Place at_loopback(Place place) {
  place.num_addresses = 1;
  place.addresses[0] = loopback;
  return place;
}

Place place_of(int listener) {
  return at_loopback({.port = port_of(listener)});
}

Deadline soon(Duration wait = std::chrono::seconds(20)) {
  return Deadline::after(wait);
}

std::string failure_of(const std::map<int, Place>& places, Deadline deadline) {
  try {
    static_cast<void>(call_all(places, secret, 0, deadline));
  } catch (const EngineError& error) {
    return error.what();
  }
  return "";
}

/// Returns a stranger's connection to a rank; empty if the system refuses it.
UniqueFd connect_to(const Place& place) {
  UniqueFd connection = begin_to_connect(loopback, static_cast<std::uint16_t>(place.port));
  return connection;
}

/// Returns the watches of all ranks, once all have connected.
std::vector<std::unique_ptr<HostWatch>> connect_all(const std::vector<int>& host_of, int seconds) {
  std::vector<std::unique_ptr<HostWatch>> watches;
  std::vector<Place> places;
  for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
    watches.push_back(std::make_unique<HostWatch>(secret, rank, host_of));
    places.push_back(at_loopback(watches.back()->place()));
  }
  for (const auto& each : watches) each->connect(places, soon());
  for (const auto& each : watches) each->start(seconds);
  return watches;
}

TEST(MpiHostWatch, ConnectsEachPairOfHostsOnce) {
  for (const auto& host_of : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 0, 2, 1, 2, 2}, {0, 0, 0, 1, 2, 3, 4, 5, 6}}) {
    std::size_t num_watched = 0;
    for (const auto& each : connect_all(host_of, 3)) num_watched += each->num_watched();
    const auto num_hosts = static_cast<std::size_t>(*std::ranges::max_element(host_of)) + 1;
    EXPECT_EQ(num_watched, num_hosts * (num_hosts - 1));
  }
}

TEST(MpiHostWatch, DoesNotReportAnEndedProcessAsSilent) {
  auto watches = connect_all({0, 1}, 3);
  EXPECT_TRUE(watches[0]->silences().empty());
  watches[1].reset();
  EXPECT_TRUE(watches[0]->silences().empty());
}

TEST(MpiHostLinks, NameTheUnreachableAddressAndTheRemedy) {
  UniqueFd other = listen_at_any_port();
  const Place closed = place_of(other.get());
  other = {};
  EXPECT_EQ(failure_of({{7, closed}}, soon()),
            "rank 0 on host " + host_name() + " cannot connect to rank 7 at port " + std::to_string(closed.port) +
                " of 127.0.0.1 (Connection refused) to watch its host; open the firewall "
                "between them for TCP, or set LEVADA_SILENCE=0 on rank 0 to do without these connections");
}

TEST(MpiHostLinks, DoNotBlameAFirewallIfTheListenerIsSilent) {
  const UniqueFd other = listen_at_any_port();
  const std::string failure = failure_of({{1, place_of(other.get())}}, soon(milliseconds(300)));
  EXPECT_NE(failure.find("connected, but the listener did not prove that it is a rank of this job"), std::string::npos)
      << failure;
  EXPECT_EQ(failure.find("firewall"), std::string::npos) << failure;
}

TEST(MpiHostLinks, ImmediatelyRejectAListenerThatDoesNotKnowTheSecret) {
  const Acceptor other(random_secret(), 1);
  const std::string failure = failure_of({{1, at_loopback(other.place())}}, soon());
  EXPECT_NE(failure.find("the listener is not a rank of this job"), std::string::npos) << failure;
}

TEST(MpiHostLinks, RejectTheListenerOfAnotherRank) {
  Acceptor other(secret, 2);
  EXPECT_NE(failure_of({{1, at_loopback(other.place())}}, soon(milliseconds(300))), "");
  EXPECT_TRUE(other.stop().empty());
}

TEST(MpiHostLinks, NameTheOpenFileLimitIfItIsTheCause) {
  Acceptor other(secret, 1);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(UniqueFd(::dup(0)).get());
  ::setrlimit(RLIMIT_NOFILE, &none);
  const std::string failure = failure_of({{1, at_loopback(other.place())}}, soon(milliseconds(300)));
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_NE(failure.find("(Too many open files)"), std::string::npos) << failure;
  EXPECT_NE(failure.find("`ulimit -n"), std::string::npos) << failure;
  EXPECT_EQ(failure.find("firewall"), std::string::npos) << failure;
}

TEST(MpiHostLinks, SucceedOnceFilesCanBeOpenedAgain) {
  Acceptor other(secret, 1);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(UniqueFd(::dup(0)).get());
  ::setrlimit(RLIMIT_NOFILE, &none);
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(200));
    ::setrlimit(RLIMIT_NOFILE, &before);
  });
  EXPECT_EQ(failure_of({{1, at_loopback(other.place())}}, soon()), "");
  later.join();
}

/// Sends data that strangers might send to a rank's port.
void intrude(const Place& place, unsigned seed, const std::atomic<bool>& is_over) {
  std::mt19937 random(seed);
  std::vector<UniqueFd> kept;
  while (!is_over) {
    UniqueFd connection = connect_to(place);
    if (!connection) continue;
    Bytes bytes(random() % 200);
    for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    LinkProof guess(LinkSide::caller, random_secret());
    switch (random() % 4) {
      case 0: break;
      case 1: {  // echo the rank's greeting
        bytes.resize(sizeof(Greeting));
        const timeval patience{.tv_sec = 0, .tv_usec = 50'000};
        ::setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        std::this_thread::sleep_for(milliseconds(5));
        static_cast<void>(::recv(connection.get(), bytes.data(), bytes.size(), 0));
        break;
      }
      case 2: bytes.assign(guess.greeting().begin(), guess.greeting().end()); break;
      default: break;
    }
    if (random() % 5 != 0) ::send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (random() % 3 == 0) kept.push_back(std::move(connection));
    if (kept.size() > 100) kept.clear();
  }
}

TEST(MpiHostLinks, SucceedAmongStrangersAndAcceptNoneOfThem) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    Acceptor acceptor(secret, 3);
    const Place place = at_loopback(acceptor.place());
    std::atomic<bool> is_over = false;
    ThreadGroup strangers;
    for (unsigned i = 0; i < 3; ++i) strangers.start("strangers", [&, i] { intrude(place, 10 * seed + i, is_over); });
    std::this_thread::sleep_for(milliseconds(100));
    std::string failure;
    try {
      const auto links = call_all({{3, place}}, secret, 8, soon());
      EXPECT_EQ(links.size(), 1U);
    } catch (const EngineError& error) {
      failure = error.what();
    }
    is_over = true;
    strangers.join();
    EXPECT_EQ(failure, "");
    for (const HostLink& each : acceptor.stop()) EXPECT_EQ(each.rank, 8);
  }
}

}  // namespace
}  // namespace levada::mpi
