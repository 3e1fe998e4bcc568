#include "levada/engine/shm/control.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "levada/engine/shm/memory.h"

namespace levada::shm {
namespace {

TEST(Ring, CarriesDescriptorsInOrderBetweenThreads) {
  constexpr std::uint64_t count = 20'000;
  const auto state = std::make_unique<Ring::State>();
  std::thread producer([&] {
    Ring ring(*state);
    std::uint64_t sent = 0;
    while (sent < count) {
      if (*ring.room(sent) == 0) {
        std::this_thread::yield();
        continue;
      }
      Descriptor descriptor;
      descriptor.key = sent * 3;
      ring.push(sent, descriptor);
    }
  });
  Ring ring(*state);
  std::uint64_t received = 0;
  while (received < count) {
    const auto waiting = *ring.waiting(received);
    if (waiting == 0) std::this_thread::yield();
    for (std::uint64_t i = 0; i < waiting; ++i) EXPECT_EQ(ring.at(received + i).key, (received + i) * 3);
    received += waiting;
    ring.pop_to(received);
  }
  producer.join();
}

TEST(Ring, DetectsImpossibleCounts) {
  const auto state = std::make_unique<Ring::State>();
  Ring ring(*state);
  state->head = Ring::capacity + 1;
  EXPECT_FALSE(ring.waiting(0));
  state->tail = 5;
  EXPECT_FALSE(ring.room(4));
}

TEST(Ring, TracksWhetherItsProducerMayHaveFoundItFull) {
  const auto state = std::make_unique<Ring::State>();
  Ring ring(*state);
  state->head = Ring::capacity - Ring::reserve - 1;
  EXPECT_FALSE(ring.may_have_been_full(3, 3));
  state->head = Ring::capacity - Ring::reserve;
  EXPECT_TRUE(ring.may_have_been_full(3, 3));
  EXPECT_FALSE(ring.may_have_been_full(3, 2));
}

TEST(Futex, WakesOnlyWaitersWithMatchingBits) {
  FutexWord word{0};
  std::thread sleeper([&] { futex_wait(word, 0, std::chrono::minutes(1), wake_for(3) | wake_for_memory); });
  while (futex_wake(word, wake_for(3)) == 0) EXPECT_EQ(futex_wake(word, wake_for(4)), 0);
  sleeper.join();
}

TEST(Control, TheLastReceiverOfAMessageSeesThatAllHavePassedAStep) {
  const Mapping memory(make_memory_file("test", Control::bytes(3)), Control::bytes(3), Mapping::Access::write);
  const Control control(memory.data(), 3);
  constexpr std::array receivers{0, 2};
  for (const int receiver : receivers) control.ack(1, 7, receiver).publish(5);
  control.ack(1, 7, 0).receive(5);
  EXPECT_FALSE(control.all_beyond(SlotAck::published, 1, 7, 5, receivers));
  control.ack(1, 7, 2).receive(5);
  EXPECT_TRUE(control.all_beyond(SlotAck::published, 1, 7, 5, receivers));
  control.ack(1, 7, 2).mark_returned(5);
  EXPECT_FALSE(control.all_beyond(SlotAck::received, 1, 7, 5, receivers));
  control.ack(1, 7, 0).mark_returned(5);
  EXPECT_TRUE(control.all_beyond(SlotAck::received, 1, 7, 5, receivers));
}

TEST(SlotAck, AdvancesFromPublishedToReceivedToReturned) {
  FutexWord word{0};
  SlotAck state(word);
  EXPECT_FALSE(state.receive(1));
  state.publish(1);
  EXPECT_EQ(state.step(1), SlotAck::published);
  EXPECT_FALSE(state.mark_returned(1));
  EXPECT_TRUE(state.receive(1));
  EXPECT_FALSE(state.receive(1));
  EXPECT_FALSE(state.drop(1));
  EXPECT_TRUE(state.mark_returned(1));
  EXPECT_EQ(state.step(1), SlotAck::returned);
}

TEST(SlotAck, OfAnEarlierMessageDoesNotAffectTheNext) {
  FutexWord word{0};
  SlotAck state(word);
  state.publish(1);
  state.drop(1);
  state.publish(2);
  EXPECT_FALSE(state.drop(1));
  EXPECT_FALSE(state.receive(1));
  EXPECT_EQ(state.step(2), SlotAck::published);
  EXPECT_EQ(state.step(1), SlotAck::returned);
}

TEST(Board, NeverReturnsATornStatus) {
  const auto board = std::make_unique<Board>();
  std::thread writer([&] {
    for (int i = 0; i < 20'000; ++i) board->post(Status::make("step", i, i, std::string(200, char('a' + i % 26))));
  });
  std::int64_t last = -1;
  while (last < 19'999) {
    const Status status = board->read();
    if (status.operation[0] == 0) continue;
    ASSERT_EQ(status.step, status.waiting_for);
    ASSERT_EQ(status.detail[0], char('a' + status.step % 26));
    ASSERT_EQ(status.detail[199], status.detail[0]);
    ASSERT_GE(status.step, last);
    last = status.step;
  }
  writer.join();
}

TEST(Board, ReturnsAStatusWithTerminatedTextsAndAPossibleStart) {
  Status status = Status::make("step", 1);
  status.operation.fill('x');
  status.detail.fill('x');
  status.since_ns = std::numeric_limits<std::int64_t>::min();
  const auto board = std::make_unique<Board>();
  board->post(status);
  const Status read = board->read();
  EXPECT_EQ(std::string(read.operation.data()), std::string(status.operation.size() - 1, 'x'));
  EXPECT_EQ(std::string(read.detail.data()), std::string(status.detail.size() - 1, 'x'));
  EXPECT_EQ(read.since_ns, 0);
}

TEST(Control, RegionsOfDifferentRanksDoNotOverlap) {
  for (const int size : {1, 2, 8, 64, 1024}) {
    EXPECT_GE(Control::slots(size), 4096U);
    EXPECT_LT(Control::bytes(size), std::uint64_t{1} << 38);
  }
  constexpr int size = 3;
  const Mapping memory(make_memory_file("control", Control::bytes(size)), Control::bytes(size), Mapping::Access::write);
  const Control control(memory.data(), size);
  for (int from = 0; from < size; ++from) {
    control.page(from).own.count = static_cast<std::uint32_t>(from + 1);
    for (int to = 0; to < size; ++to) {
      std::uint64_t sent = 0;
      Descriptor descriptor;
      descriptor.key = static_cast<std::uint64_t>(from * size + to);
      control.ring(from, to).push(sent, descriptor);
      control.ack(from, Control::slots(size) - 1, to).publish(static_cast<std::uint32_t>(from * size + to + 1));
    }
  }
  for (int from = 0; from < size; ++from) {
    EXPECT_EQ(control.page(from).own.count, static_cast<std::uint32_t>(from + 1));
    for (int to = 0; to < size; ++to) {
      EXPECT_EQ(control.ring(from, to).at(0).key, static_cast<std::uint64_t>(from * size + to));
      const auto ack = control.ack(from, Control::slots(size) - 1, to);
      EXPECT_EQ(ack.step(static_cast<std::uint32_t>(from * size + to + 1)), SlotAck::published);
    }
  }
}

}  // namespace
}  // namespace levada::shm
