#include "levada/pipeline/protocol.h"

#include <gtest/gtest.h>

namespace levada::pipeline::protocol {
namespace {

std::vector<Command> some_commands() {
  Reset reset{.epoch = 3, .dispatcher = {7, Bytes(5)}, .workers = {{4, 3, 1, Bytes(2)}, {}}, .mark = 5};
  return {{1, reset}, {2, Pause{}}, {3, Resume{}}, {4, Report{true}}, {5, Shutdown{}}};
}

std::vector<Items> some_items() {
  Failure failure{.stage = "map", .process = "worker 1", .item = 17, .message = "no", .traceback = "t"};
  failure.exception = Bytes(3);
  Items listed{.reset = 4, .first = 2, .count = 3};
  listed.marks = {1, 1, 5};
  listed.reached = 6;
  listed.dispatcher_snapshots = {{8, Bytes(4)}};
  Items consecutive{.reset = 4, .count = 3};
  consecutive.marks = {4, 5, 6};
  consecutive.reached = 6;
  consecutive.snapshot = WorkerSnapshot{.num_inputs = 4, .num_outputs = 2, .drop = 0, .cursor = Bytes(9)};
  Items failed{.reset = 9, .ending = Ending::failed};
  failed.failure = failure;
  return {listed, consecutive, failed, Items{.reset = 1, .ending = Ending::left}};
}

template <typename Decode>
void expect_refused(const Bytes& good, const Decode& decode) {
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(decode(ByteView(good).first(size)), CorruptMessage) << size;
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode(longer), CorruptMessage);
}

TEST(PipelineMessages, RoundTrip) {
  for (const Command& command : some_commands()) EXPECT_EQ(decode<Command>(encode(command)), command);
  for (const Items& items : some_items()) EXPECT_EQ(decode<Items>(encode(items)), items);
  Ack ack{.number = 5, .process = "worker 0 (process 4242)"};
  ack.totals = {.stages = {{1, 2, 3, 4}}, .messages = 5, .wakeups = 6, .bytes = 7, .copied = 8};
  EXPECT_EQ(decode<Ack>(encode(ack)), ack);
}

TEST(PipelineMessages, AreRejectedIfInvalid) {
  for (const Command& command : some_commands()) expect_refused(encode(command), decode<Command>);
  for (const Items& items : some_items()) expect_refused(encode(items), decode<Items>);
  expect_refused(encode(Ack{.number = 5, .process = "x"}), decode<Ack>);
  Items too_few{.reset = 1, .count = 2};
  too_few.marks = {1, 1, 1, 7};
  EXPECT_THROW(decode<Items>(encode(too_few)), CorruptMessage);
  EXPECT_THROW(decode<Items>(encode(Items{.reset = 1, .first = -1})), CorruptMessage);
  EXPECT_THROW(decode<Items>(encode(Items{.reset = 1, .count = 1u << 30})), CorruptMessage);
}

TEST(PipelineProcessState, AppliesEachCommandOnceAndInTurn) {
  ProcessState state;
  state.apply({1, Reset{}});
  EXPECT_THROW(state.apply({1, Pause{}}), CorruptMessage);
  EXPECT_THROW(state.apply({3, Pause{}}), CorruptMessage);
  state.apply({2, Shutdown{}});
  EXPECT_THROW(state.apply({3, Pause{}}), CorruptMessage);
}

TEST(PipelineProcessState, AResetEndsAPause) {
  ProcessState state;
  state.apply({1, Reset{}});
  state.apply({2, Pause{}});
  EXPECT_TRUE(state.paused());
  state.apply({3, Reset{}});
  EXPECT_FALSE(state.paused());
  EXPECT_EQ(state.reset_number(), 3u);
}

TEST(PipelineAssigner, AssignsInTurnAndSkipsItemsThatAWorkerHasReceived) {
  RoundRobinAssigner assigner(
      3,
      Reset{.epoch = 0, .dispatcher = {4, {}}, .workers = {{.num_inputs = 3}, {.num_inputs = 1}, {.num_inputs = 2}}});
  std::vector<std::pair<std::int64_t, int>> wanted;
  for (; assigner.number() < 11; assigner.advance()) {
    if (assigner.wanted()) wanted.emplace_back(assigner.number(), assigner.worker());
  }
  EXPECT_EQ(wanted, (std::vector<std::pair<std::int64_t, int>>{{4, 1}, {7, 1}, {8, 2}, {9, 0}, {10, 1}}));

  const RoundRobinAssigner later(
      2, Reset{.epoch = 0, .dispatcher = {}, .workers = {{.num_inputs = 4}, {.num_inputs = 3}}});
  EXPECT_EQ(later.unwanted(), 7);
}

TEST(PipelineWorkerInput, RejectsItemsOutOfOrder) {
  WorkerInput input(1, 2, 0);
  EXPECT_THROW(input.apply({.reset = 1, .first = 3, .count = 1}), CorruptMessage);
  input.apply({.reset = 1, .first = 1, .count = 2});
  EXPECT_THROW(input.apply({.reset = 1, .first = 3, .count = 1}), CorruptMessage);
  input.apply({.reset = 1, .first = 5, .count = 1, .ending = Ending::ended});
  EXPECT_THROW(input.apply({.reset = 1, .first = 7, .count = 1}), CorruptMessage);
}

TEST(PipelineMerge, RejectsItemsOutOfOrder) {
  OrderedMerge merge(2, {});
  Items items{.reset = 1, .first = 1, .count = 1, .marks = {1}, .reached = 1};
  EXPECT_THROW(merge.apply(0, items), CorruptMessage);
  items.first = 0;
  items.reached = 0;
  EXPECT_THROW(merge.apply(0, items), CorruptMessage);
  items.reached = 3;
  merge.apply(0, items);
  items.first = 1;
  EXPECT_THROW(merge.apply(0, items), CorruptMessage);
}

TEST(PipelineMerge, DoesNotWaitForAWorkerThatHasReportedALaterMark) {
  OrderedMerge merge(2, {});
  merge.apply(1, {.reset = 1, .count = 1, .marks = {1}, .reached = 2});
  EXPECT_EQ(merge.next(), OrderedMerge::Step::wait);
  EXPECT_EQ(merge.worker(), 0);
  merge.apply(0, {.reset = 1, .marks = {}, .reached = 2});
  EXPECT_EQ(merge.next(), OrderedMerge::Step::pull);
  EXPECT_EQ(merge.worker(), 1);
}

TEST(PipelineCommands, AreIssuedOnceAllHaveAcknowledgedTheLastOne) {
  CommandLog commands(2);
  EXPECT_TRUE(commands.all_acked());
  EXPECT_EQ(commands.issue(Pause{}).number, 1u);
  EXPECT_THROW(commands.apply(0, {.number = 2, .process = {}, .totals = {}}), CorruptMessage);
  commands.apply(0, {.number = 1, .process = {}, .totals = {}});
  EXPECT_THROW(commands.apply(0, {.number = 1, .process = {}, .totals = {}}), CorruptMessage);
  EXPECT_FALSE(commands.all_acked());
  commands.apply(1, {.number = 1, .process = {}, .totals = {}});
  EXPECT_TRUE(commands.all_acked());
}

}  // namespace
}  // namespace levada::pipeline::protocol
