// Which threads a call wakes. The ranks are threads of this process and have no heartbeat.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "levada/engine/collect.h"
#include "levada/engine/shm/endpoint.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::shm {
namespace {

constexpr std::size_t whole_memory = 1 << 20;

struct Ranks {
  explicit Ranks(int size) : memories(test::share_in_process(size, whole_memory)) {
    for (const HostMemory& memory : memories) {
      engines.push_back(
          make_engine(std::make_shared<ShmEndpoint>(memory, EndpointOptions{.heartbeat = Duration::max()})));
    }
  }
  RankPage& page(int rank) const {
    return Control(memories[0].control->data(), static_cast<int>(memories.size())).page(rank);
  }
  Engine& operator[](int rank) const { return *engines[static_cast<std::size_t>(rank)]; }

  std::vector<HostMemory> memories;
  std::vector<std::shared_ptr<Engine>> engines;
};

/// A thread in a wait.
class Waiting {
 public:
  /// Returns once the thread sleeps on `bell`.
  Waiting(Engine& engine, WaitFor wanted, const Doorbell& bell) : engine_(engine) {
    wanted.stop = &stop_;
    const std::uint32_t before = bell.sleepers;
    woken_ = std::async(std::launch::async, [this, wanted] {
      thread_ = ::gettid();
      return engine_.wait(wanted, test::soon());
    });
    for (const Deadline deadline = test::soon(); bell.sleepers == before && !deadline.expired();)
      std::this_thread::yield();
    sleep_again();
  }
  ~Waiting() {
    stop_ = true;
    engine_.wake();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  bool has_slept_on() const {
    const auto state = test::state_of_thread(thread_);
    return state.is_asleep && state.num_sleeps == num_sleeps_;
  }
  void sleep_again() { num_sleeps_ = test::wait_until_it_sleeps(thread_); }
  bool ends() { return woken_.get() == Woken::ready; }

 private:
  Engine& engine_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> thread_ = 0;
  long num_sleeps_ = 0;
  std::future<Woken> woken_;
};

/// Both ends of a channel from rank 0 to rank 1.
struct Pair {
  explicit Pair(const Ranks& ranks) : sending(ranks[0].open(0, {1}, 1)), receiving(ranks[1].open(0, {1}, 1)) {}
  WakeMask mask() const { return wake_for(static_cast<EndpointChannel&>(*sending).state().key); }
  std::shared_ptr<Channel> sending, receiving;
};

/// Returns pairs of which no two wake the same threads.
std::vector<Pair> distinct_pairs(const Ranks& ranks, std::size_t count) {
  std::vector<Pair> pairs;
  WakeMask used = 0;
  while (pairs.size() < count) {
    Pair pair(ranks);
    if ((used & pair.mask()) != 0) continue;
    used |= pair.mask();
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

void send_one(Engine& engine, Channel& channel) {
  publish(engine, channel, allocate(engine, 1, test::soon(), "test"), 1, test::soon(), "test");
}

TEST(Wakes, ClosingAChannelWakesNoReceiverOfAnotherChannel) {
  const Ranks ranks(2);
  const auto pairs = distinct_pairs(ranks, 3);
  Channel* const awaited[] = {pairs[0].receiving.get()};
  Waiting receiver(ranks[1], {.receive = awaited}, ranks.page(0).sends);
  ranks[0].close(*pairs[1].sending, End::sending);
  EXPECT_TRUE(receiver.has_slept_on());
  ranks[1].close(*pairs[2].receiving, End::receiving);
  EXPECT_TRUE(receiver.has_slept_on());
  ranks[0].close(*pairs[0].sending, End::sending);
  EXPECT_TRUE(receiver.ends());
}

TEST(Wakes, ClosingAReceiverWakesNoSenderOnAnotherChannel) {
  const Ranks ranks(2);
  const auto pairs = distinct_pairs(ranks, 2);
  send_one(ranks[0], *pairs[0].sending);
  Channel* const full[] = {pairs[0].sending.get()};
  Waiting sender(ranks[0], {.publish = full}, ranks.page(0).own);
  ranks[1].close(*pairs[1].receiving, End::receiving);
  EXPECT_TRUE(sender.has_slept_on());
  ranks[1].close(*pairs[0].receiving, End::receiving);
  EXPECT_TRUE(sender.ends());
}

TEST(Wakes, OneNotificationWakesAllReceiversThatWaitOnlyForTheirSender) {
  const Ranks ranks(3);
  std::vector<std::shared_ptr<Channel>> channels;
  for (int rank = 0; rank < 3; ++rank) channels.push_back(ranks[rank].open(0, {1, 2}, 1));
  Channel *const first[] = {channels[1].get()}, *const second[] = {channels[2].get()};
  Waiting one(ranks[1], {.receive = first}, ranks.page(0).sends);
  Waiting two(ranks[2], {.receive = second}, ranks.page(0).sends);
  const auto counts = [&] {
    return std::vector<std::uint32_t>{ranks.page(0).sends.count, ranks.page(1).own.count, ranks.page(2).own.count};
  };
  auto expected = counts();
  ++expected[0];
  send_one(ranks[0], *channels[0]);
  EXPECT_TRUE(one.ends());
  EXPECT_TRUE(two.ends());
  EXPECT_EQ(counts(), expected);
}

/// One receiver closes with a message unread, or leaves. Then the other receives and releases its message.
void expect_the_last_receiver_to_wake_the_sender(bool leaves, bool for_memory) {
  Ranks ranks(3);
  std::vector<std::shared_ptr<Channel>> channels;
  for (int rank = 0; rank < 3; ++rank) channels.push_back(ranks[rank].open(0, {1, 2}, 1));
  publish(ranks[0], *channels[0], allocate(ranks[0], whole_memory, test::soon(), "test"), 1, test::soon(), "test");
  Channel* const full[] = {channels[0].get()};
  const WaitFor wanted = for_memory ? WaitFor{.allocate = whole_memory} : WaitFor{.publish = full};
  Waiting sender(ranks[0], wanted, ranks.page(0).own);
  channels[1].reset();
  if (leaves) ranks.engines[1].reset();
  sender.sleep_again();
  EXPECT_TRUE(ranks[2].try_receive(*channels[2]).message);
  EXPECT_TRUE(sender.ends()) << (leaves ? "leaves" : "closes") << (for_memory ? ", memory" : ", room");
}

TEST(Wakes, TheLastReceiverWakesASenderAfterAnotherClosedWithUnreadMessages) {
  for (const bool leaves : {false, true}) {
    for (const bool for_memory : {false, true}) expect_the_last_receiver_to_wake_the_sender(leaves, for_memory);
  }
}

}  // namespace
}  // namespace levada::shm
