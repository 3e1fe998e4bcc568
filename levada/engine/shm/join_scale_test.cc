// The cost of the join protocol at the size of a large job: all steps on all ranks, without sockets.
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "levada/engine/greeting.h"
#include "levada/engine/link_proof.h"
#include "levada/engine/shm/start_frames.h"

namespace levada::shm {
namespace {

constexpr int num_hosts = 1024, ranks_per_host = 8;

double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

/// Each rank checks the greetings of all ranks.
void greet_in_the_group() {
  std::vector<Greeting> greetings;
  for (int host = 0; host < num_hosts; ++host) {
    greetings.insert(greetings.end(), ranks_per_host, group_greeting("host" + std::to_string(host)));
  }
  for (std::size_t rank = 0; rank < greetings.size(); ++rank) check_greetings(greetings);
}

/// Sends a frame from one end of a link to the other. Returns whether it arrives unchanged.
bool crosses(const LinkProof& from, const LinkProof& to, const Bytes& frame) {
  const Bytes sealed = from.seal(frame);
  const auto opened = to.open(sealed);
  return opened && as_text(*opened) == as_text(frame);
}

/// Runs a rank's start on its host.
bool start_with_rank_zero(const Secret& secret, int rank) {
  LinkProof zero(LinkSide::listener, secret), other(LinkSide::caller, secret);
  if (zero.greet(other.greeting()) != LinkProof::Peer::rank) return false;
  if (other.greet(zero.greeting()) != LinkProof::Peer::rank) return false;
  const Bytes plan = encode_plan(std::vector<std::uint64_t>(ranks_per_host, 1 << 20));
  return crosses(other, zero, encode(Hello{.rank = rank, .size = ranks_per_host})) && crosses(zero, other, plan) &&
         crosses(other, zero, encode(FrameKind::ready)) && crosses(zero, other, encode(FrameKind::go));
}

TEST(JoinScale, AThousandHostsOfEightRanksJoinInSecondsOfCpuTime) {
  const double begin = processor_seconds();
  greet_in_the_group();
  const double greeted = processor_seconds();
  const Secret secret = random_secret();
  for (int host = 0; host < num_hosts; ++host) {
    for (int rank = 1; rank < ranks_per_host; ++rank) ASSERT_TRUE(start_with_rank_zero(secret, rank));
  }
  const double end = processor_seconds();
  RecordProperty("seconds", std::to_string(end - begin));
  std::printf("%d ranks: %.2f s of processor time for all greetings, %.2f s for all starts\n",
              num_hosts * ranks_per_host, greeted - begin, end - greeted);
  EXPECT_LT(end - begin, 10);
}

}  // namespace
}  // namespace levada::shm
