// Full rings, between threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/endpoint.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::shm {
namespace {

constexpr auto num_closed = static_cast<int>(Ring::reserve) + 8;

/// The channels from rank 0 to rank 1 that one round uses, as one of the two opens them.
struct Round {
  explicit Round(Engine& engine) : filling(engine.open(0, {1}, 1000)), next(engine.open(0, {1}, 1)) {
    for (int i = 0; i < num_closed; ++i) closed.push_back(engine.open(0, {1}, 1));
  }
  std::shared_ptr<Channel> filling, next;
  std::vector<std::shared_ptr<Channel>> closed;
};

// The sender defers notices, because the ring is full, and tries to publish the first message on another channel
// while the receiver makes room. The notice that announces the channel must not arrive after its message.
TEST(Rings, NoMessageOvertakesADeferredNotice) {
  constexpr int num_rounds = 50;
  const auto memories = test::share_in_process(2, 32 << 20);
  const auto sender = make_engine(std::make_shared<ShmEndpoint>(memories[0]));
  const auto receiver = make_engine(std::make_shared<ShmEndpoint>(memories[1]));
  std::atomic<int> num_full = 0;
  auto receiving = std::async(std::launch::async, [&] {
    for (int i = 0; i < num_rounds; ++i) {
      const Round round(*receiver);
      while (num_full.load() <= i) std::this_thread::yield();
      while (receive(*receiver, *round.filling, test::soon(), "test")) {
      }
      EXPECT_TRUE(receive(*receiver, *round.next, test::soon(), "test"));
    }
  });
  try {
    for (int i = 0; i < num_rounds; ++i) {
      Round round(*sender);
      Block last = allocate(*sender, 1, test::soon(), "test");
      while (true) {
        Block block = allocate(*sender, 1, test::soon(), "test");
        if (!sender->try_publish(*round.filling, block, 1)) break;
      }
      sender->close(*round.filling, End::sending);
      round.closed.clear();
      num_full = i + 1;
      for (const Deadline deadline = test::soon(); !sender->try_publish(*round.next, last, 1);) {
        if (deadline.expired()) throw Timeout("the ring stays full");
      }
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
    num_full = num_rounds;
  }
  try {
    receiving.get();
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

/// A channel that its sender closes while the ring is full ends for the receiver once it has made room, even if the
/// sender's only thread waits for messages on another doorbell.
TEST(Rings, ADeferredNoticeWakesThreadsThatWaitForMessages) {
  const auto memories = test::share_in_process(2, 32 << 20);
  const EndpointOptions patient{.heartbeat = Duration::max()};
  const auto sender = make_engine(std::make_shared<ShmEndpoint>(memories[0], patient));
  const auto receiver = make_engine(std::make_shared<ShmEndpoint>(memories[1], patient));
  const auto answer = sender->open(1, {0}, 1), answering = receiver->open(1, {0}, 1);
  Round sent(*sender);
  const Round received(*receiver);
  std::atomic<pid_t> waiter = 0;
  auto waiting = std::async(std::launch::async, [&] {
    waiter = ::gettid();
    return bool(receive(*sender, *answer, test::soon(), "test"));
  });
  const auto& sleepers = Control(memories[0].control->data(), 2).page(1).sends.sleepers;
  for (const Deadline deadline = test::soon(); sleepers == 0 && !deadline.expired();) std::this_thread::yield();
  for (bool has_room = true; has_room;) {
    Block block = allocate(*sender, 1, test::soon(), "test");
    has_room = sender->try_publish(*sent.filling, block, 1);
  }
  sender->close(*sent.filling, End::sending);
  sent.closed.clear();
  test::wait_until_it_sleeps(waiter);
  while (receive(*receiver, *received.filling, test::soon(), "test")) {
  }
  EXPECT_FALSE(receive(*receiver, *received.closed.back(), test::soon(), "test"));
  publish(*receiver, *answering, allocate(*receiver, 1, test::soon(), "test"), 1, test::soon(), "test");
  EXPECT_TRUE(waiting.get());
}

}  // namespace
}  // namespace levada::shm
