#include "levada/engine/link_proof.h"

#include <gtest/gtest.h>

#include <string>

namespace levada {
namespace {

using Peer = LinkProof::Peer;

const Secret job = random_secret();

/// Two ends that have greeted each other.
struct Ends {
  LinkProof zero{LinkSide::listener, job};
  LinkProof other{LinkSide::caller, job};

  Ends() {
    EXPECT_EQ(zero.greet(other.greeting()), Peer::rank);
    EXPECT_EQ(other.greet(zero.greeting()), Peer::rank);
  }
};

std::string opened(const LinkProof& end, ByteView sealed) {
  const auto frame = end.open(sealed);
  return frame ? std::string(as_text(*frame)) : "refused";
}

TEST(LinkProof, OpensFramesThatTheOtherEndSealed) {
  const Ends link;
  EXPECT_EQ(opened(link.zero, link.other.seal(as_bytes("hello"))), "hello");
  EXPECT_EQ(opened(link.other, link.zero.seal(as_bytes("plan"))), "plan");
  EXPECT_EQ(opened(link.other, link.zero.seal({})), "");
}

TEST(LinkProof, RejectsAGreetingMadeWithoutTheSecret) {
  LinkProof zero(LinkSide::listener, job);
  EXPECT_EQ(zero.greet(LinkProof(LinkSide::caller, random_secret()).greeting()), Peer::stranger);
  EXPECT_EQ(zero.greet({}), Peer::stranger);
  EXPECT_EQ(zero.greet(Bytes(64)), Peer::stranger);
  EXPECT_EQ(zero.greet(ByteView(LinkProof(LinkSide::caller, job).greeting()).first(63)), Peer::stranger);
  EXPECT_FALSE(zero.is_greeted());
}

TEST(LinkProof, RejectsItsOwnGreeting) {
  LinkProof zero(LinkSide::listener, job);
  EXPECT_EQ(zero.greet(zero.greeting()), Peer::stranger);
}

TEST(LinkProof, DistinguishesARankOfAnotherReleaseFromAStranger) {
  const Release newer{protocol_number + 1, "9.9.9"};
  LinkProof zero(LinkSide::listener, job);
  EXPECT_EQ(zero.greet(LinkProof(LinkSide::caller, random_secret(), newer).greeting()), Peer::stranger);
  EXPECT_EQ(zero.greet(LinkProof(LinkSide::caller, job, newer).greeting()), Peer::rank_of_another_release);
  EXPECT_EQ(zero.peer_release(), newer);
}

TEST(LinkProof, RejectsAModifiedTruncatedOrReplayedFrame) {
  const Ends link;
  const Bytes sealed = link.other.seal(as_bytes("hello"));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    Bytes changed = sealed;
    changed[i] ^= std::byte{1};
    EXPECT_EQ(opened(link.zero, changed), "refused") << i;
    EXPECT_EQ(opened(link.zero, ByteView(sealed).first(i)), "refused") << i;
  }
  const Ends later;
  EXPECT_EQ(opened(later.zero, sealed), "refused");
}

TEST(LinkProof, RejectsItsOwnFrame) {
  const Ends link;
  EXPECT_EQ(opened(link.zero, link.zero.seal(as_bytes("plan"))), "refused");
}

TEST(LinkProof, RejectsFramesBeforeTheGreeting) {
  const LinkProof zero(LinkSide::listener, job);
  const Ends link;
  EXPECT_EQ(opened(zero, link.other.seal(as_bytes("hello"))), "refused");
}

TEST(LinkProof, NeverSendsItsSecret) {
  const Ends link;
  Bytes sent(link.zero.greeting().begin(), link.zero.greeting().end());
  const Bytes sealed = link.zero.seal(as_bytes("plan"));
  sent.insert(sent.end(), sealed.begin(), sealed.end());
  for (std::size_t at = 0; at + 8 <= job.size(); ++at) {
    EXPECT_EQ(as_text(sent).find(as_text(ByteView(job).subspan(at, 8))), std::string_view::npos);
  }
}

}  // namespace
}  // namespace levada
