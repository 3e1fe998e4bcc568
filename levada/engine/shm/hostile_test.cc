// Control memory and sockets that contain garbage.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/endpoint.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/engine/shm/frames.h"
#include "levada/engine/shm/start_frames.h"
#include "levada/engine/shm/start_link.h"

namespace levada::shm {
namespace {

constexpr std::size_t data_bytes = 1 << 20;

/// Rank 0 of two. The test writes in place of the second rank.
class Victim {
 public:
  Victim() : memories_(test::share_in_process(2, data_bytes)), control_(memories_[0].control->data(), 2) {
    engine_ = make_engine(std::make_shared<ShmEndpoint>(memories_[0]));
    channel_ = engine_->open(0, {0, 1}, 4);
  }

  Engine& engine() { return *engine_; }
  Channel& channel() { return *channel_; }
  const Control& control() const { return control_; }
  /// The second rank, before the test takes over.
  std::shared_ptr<Engine> peer() const { return make_engine(std::make_shared<ShmEndpoint>(memories_[1])); }
  /// Takes over the peer. Returns the last descriptor that it sent, to be sent again.
  Descriptor take_pen(std::uint64_t sent) {
    sent_ = sent;
    return control_.ring(1, 0).at(sent - 1);
  }
  void push(const Descriptor& descriptor) {
    control_.ring(1, 0).push(sent_, descriptor);
    control_.page(0).pending[0].fetch_or(2);
  }
  std::string complaint() {
    try {
      engine_->status(0);
    } catch (const CorruptMessage& error) {
      return error.what();
    }
    return {};
  }

 private:
  std::vector<HostMemory> memories_;
  Control control_;
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Channel> channel_;
  std::uint64_t sent_ = 0;
};

Descriptor message(std::uint64_t offset, std::uint64_t bytes, std::uint32_t slot = 0) {
  Descriptor descriptor;
  descriptor.kind = Descriptor::Kind::message;
  descriptor.key = 99;
  descriptor.offset = offset;
  descriptor.bytes = bytes;
  descriptor.slot = slot;
  descriptor.generation = 1;
  return descriptor;
}

TEST(Hostile, RejectsDescriptorsThatPointOutsideTheMemory) {
  const Descriptor wrong[] = {
      message(0, 0),
      message(data_bytes, 1),
      message(0, data_bytes + 1),
      message(data_bytes - 10, 11),
      message(~std::uint64_t{0}, 2),
      message(1, ~std::uint64_t{0}),
      message(page_bytes / 2, 1),
      message(0, 1, Control::slots(2)),
      message(0, 1, ~std::uint32_t{0}),
  };
  for (const Descriptor& descriptor : wrong) {
    Victim victim;
    victim.push(descriptor);
    EXPECT_NE(victim.complaint().find("rank 1"), std::string::npos)
        << descriptor.offset << " " << descriptor.bytes << " " << descriptor.slot;
  }
}

TEST(Hostile, RejectsDescriptorsOfUnknownKinds) {
  for (const unsigned kind : {6U, 15U}) {
    Victim victim;
    Descriptor descriptor;
    descriptor.kind = static_cast<Descriptor::Kind>(kind);
    victim.push(descriptor);
    EXPECT_NE(victim.complaint(), "") << kind;
  }
}

TEST(Hostile, RejectsImpossibleRingCounts) {
  Victim victim;
  std::uint64_t sent = 100'000;
  victim.control().ring(1, 0).push(sent, message(0, 1));
  victim.control().page(0).pending[0].fetch_or(2);
  EXPECT_NE(victim.complaint(), "");
}

TEST(Hostile, RejectsAnImpossibleReceivedCount) {
  Victim victim;
  victim.control().ring(0, 1).pop_to(77);
  Block block = allocate(victim.engine(), 10, Deadline::now(), "test");
  EXPECT_THROW(publish(victim.engine(), victim.channel(), std::move(block), 10,
                       Deadline::after(std::chrono::seconds(10)), "test"),
               CorruptMessage);
}

TEST(Hostile, RejectsAMessageOnAnUnannouncedChannel) {
  Victim victim;
  victim.push(message(0, 1));
  EXPECT_NE(victim.complaint().find("unannounced"), std::string::npos);
}

TEST(Hostile, RejectsAnUnpublishedMessageOnReceive) {
  Victim victim;
  const auto peer = victim.peer();
  const auto sending = peer->open(1, {0}, 2), receiving = victim.engine().open(1, {0}, 2);
  publish(*peer, *sending, allocate(*peer, 10, Deadline::now(), "test"), 10, Deadline::now(), "test");
  Descriptor never = victim.take_pen(2);
  never.generation = (never.generation + 1) & (generations - 1);
  victim.push(never);
  EXPECT_TRUE(victim.engine().try_receive(*receiving).message);
  EXPECT_THROW(victim.engine().try_receive(*receiving), CorruptMessage);
}

TEST(Hostile, RejectsMoreMessagesThanTheWindow) {
  for (const bool before_it_is_opened : {false, true}) {
    Victim victim;
    const auto peer = victim.peer();
    const auto sending = peer->open(1, {0}, 2);
    publish(*peer, *sending, allocate(*peer, 10, Deadline::now(), "test"), 10, Deadline::now(), "test");
    const Descriptor sent = victim.take_pen(2);
    std::shared_ptr<Channel> channel;
    if (!before_it_is_opened) channel = victim.engine().open(1, {0}, 2);
    victim.push(sent);
    EXPECT_EQ(victim.complaint(), "") << "there are no more than the window allows";
    victim.push(sent);
    EXPECT_NE(victim.complaint().find("more messages than the window of 2"), std::string::npos) << victim.complaint();
  }
}

TEST(Shm, PublishesOnlyItsOwnBlocks) {
  Victim victim;
  const Bytes bytes(10);
  EXPECT_THROW(victim.engine().try_publish(victim.channel(), Lease{bytes, nullptr}), Unsupported);
  EXPECT_THROW(victim.engine().on_change([] {}), Unsupported);
}

TEST(Hostile, TreatsOutOfOrderAcknowledgmentsAsReturned) {
  Victim victim;
  Block block = allocate(victim.engine(), 10, Deadline::now(), "test");
  publish(victim.engine(), victim.channel(), std::move(block), 10, Deadline::now(), "test");
  for (std::uint32_t slot = 0; slot < 10; ++slot) victim.control().ack(0, slot, 1).publish(12345);
  static_cast<void>(victim.engine().try_receive(victim.channel()));
  EXPECT_TRUE(victim.engine().holders(victim.channel()).empty());
}

TEST(Hostile, SurvivesRandomDescriptors) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    Victim victim;
    std::string complaint;
    for (int i = 0; i < 200 && complaint.empty(); ++i) {
      Descriptor descriptor = message(random() % 4 == 0 ? random() : random() % data_bytes, random() % 1000, 0);
      descriptor.key = random() % 4;
      descriptor.slot = static_cast<std::uint32_t>(random() % 3 == 0 ? random() : random() % 100);
      descriptor.kind = static_cast<Descriptor::Kind>(random() % 64 == 0 ? random() % 16 : random() % 6);
      victim.push(descriptor);
      complaint = victim.complaint();
    }
  }
}

// ---- the start

/// Returns the error of join() on rank 0 of two when `send` has sent something on the other end of its link.
std::string start_with(const std::function<void(StartLink&)>& send) {
  auto [mine, theirs] = make_socket_pair();
  StartLink link(std::move(theirs), LinkSide::caller, std::nullopt);
  send(link);
  std::vector<UniqueFd> links(2);
  links[1] = std::move(mine);
  try {
    static_cast<void>(
        join(0, 2, std::move(links), {.memory_bytes = data_bytes, .timeout = std::chrono::milliseconds(50)}));
  } catch (const Error& error) {
    return fmt::format("{}: {}", error.name(), error.what());
  }
  return "started";
}

void say(StartLink& link, ByteView bytes) {
  ASSERT_TRUE(link.send(bytes, {}, Deadline::now()));
}

TEST(Start, TimesOutNamingTheRankThatDidNotArrive) {
  const auto what = start_with([](StartLink&) {});
  EXPECT_EQ(what.substr(0, 31), "Timeout: rank 0 waited for rank");
  EXPECT_NE(what.find("rank 1"), std::string::npos) << what;
}

TEST(Start, NamesTheLostRankIfItsLinkCloses) {
  auto [mine, theirs] = make_socket_pair();
  theirs = UniqueFd();
  std::vector<UniqueFd> links(2);
  links[1] = std::move(mine);
  try {
    static_cast<void>(join(0, 2, std::move(links)));
    FAIL();
  } catch (const PeerLost& lost) {
    EXPECT_EQ(lost.rank(), 1);
  }
}

TEST(Start, RejectsAnInvalidHello) {
  EXPECT_EQ(start_with([](StartLink& s) { say(s, as_bytes("GET / HTTP/1.1")); }).substr(0, 14), "CorruptMessage");
  EXPECT_EQ(start_with([](StartLink& s) { say(s, encode(FrameKind::ready)); }).substr(0, 11), "EngineError");
  EXPECT_EQ(start_with([](StartLink& s) { say(s, encode_plan({1, 2})); }).substr(0, 11), "EngineError");
  Bytes cut = encode(Hello{.rank = 1, .size = 2});
  cut.resize(cut.size() - 1);
  EXPECT_EQ(start_with([&](StartLink& s) { say(s, cut); }).substr(0, 14), "CorruptMessage");
}

TEST(Start, ReportsBothReleasesOnBothEndsIfTheyDiffer) {
  auto [mine, theirs] = make_socket_pair();
  const Release newer{protocol_number + 1, "99.0.0"};
  ASSERT_TRUE(send_frame(theirs, LinkProof(LinkSide::caller, Secret{}, newer).greeting(), {}, Deadline::now()));
  std::vector<UniqueFd> links(2);
  links[1] = std::move(mine);
  try {
    static_cast<void>(join(0, 2, std::move(links), {.memory_bytes = data_bytes}));
    FAIL();
  } catch (const EngineError& error) {
    EXPECT_EQ(
        error.what(),
        fmt::format("another rank of this host runs Levada 99.0.0, but rank 0 runs {}; install the same release for "
                    "all ranks of the job",
                    own_release().name));
  }
}

TEST(Start, RejectsAMismatchedSizeOrRank) {
  const auto size = start_with([](StartLink& s) { say(s, encode(Hello{.rank = 1, .size = 3})); });
  EXPECT_NE(size.find("same size"), std::string::npos) << size;
  const auto rank = start_with([](StartLink& s) { say(s, encode(Hello{.rank = 0, .size = 2})); });
  EXPECT_NE(rank.find("different rank numbers"), std::string::npos) << rank;
}

TEST(Start, PropagatesAFailureToTheOtherRanks) {
  const auto what = start_with([](StartLink& s) { say(s, encode(StartFailure{.message = "no memory on rank 1"})); });
  EXPECT_EQ(what, "EngineError: no memory on rank 1");
}

TEST(Start, RejectsAFailureOfAnUnknownKind) {
  Bytes failed = encode(StartFailure{.message = "no memory on rank 1"});
  constexpr std::size_t kind_at = 1;
  failed[kind_at] = std::byte{99};
  const auto what = start_with([&](StartLink& s) { say(s, failed); });
  EXPECT_NE(what.find("unknown kind of error 99"), std::string::npos) << what;
}

TEST(Start, RejectsAFrameOfAnUnknownKind) {
  Bytes ready = encode(FrameKind::ready);
  ready.back() = std::byte{99};
  const auto what = start_with([&](StartLink& s) { say(s, ready); });
  EXPECT_NE(what.find("unknown kind of frame 99"), std::string::npos) << what;
}

TEST(Start, RejectsInvalidLinks) {
  EXPECT_THROW(join(0, 2, {}), InvalidArgument);
  EXPECT_THROW(join(2, 2, {}), InvalidArgument);
  std::vector<UniqueFd> links;
  links.emplace_back(::dup(0));
  EXPECT_THROW(join(1, 2, std::move(links)), InvalidArgument);
}

}  // namespace
}  // namespace levada::shm
