#include <algorithm>

#include "levada/engine/conformance_kit.h"

namespace levada::conformance {
namespace {

int last_of(const Handle& engine) {
  return size_of(*engine) - 1;
}

template <typename Call>
void expect_lost(const Engine& engine, int rank, std::string_view sentence, Call call) {
  try {
    static_cast<void>(call());
  } catch (const PeerLost& lost) {
    return expect(engine, lost.rank() == rank, "a death names the rank that died");
  }
  fail(engine, sentence);
}

/// Makes the last rank die once all others wait or are about to. Returns on the other ranks once they have seen the
/// death.
void lose_the_last(const Handle& engine, const Death& die) {
  const int rank = rank_of(*engine), last = last_of(engine);
  std::vector<std::shared_ptr<Channel>> to_last;
  for (int from = 0; from < last; ++from) {
    if (rank == from || rank == last) to_last.push_back(engine->open(from, {last}, 1));
  }
  if (rank == last) {
    for (const auto& channel : to_last) static_cast<void>(receive(*engine, *channel, 0, 8));
    return die();
  }
  send(*engine, *to_last.front(), 0, 8);
  expect_lost(*engine, last, "a death ends a wait", [&] { return engine->wait({}, limit()); });
}

void every_call_names_the_rank_that_died(const Handle& engine, const Death& die) {
  const int rank = rank_of(*engine), last = last_of(engine);
  const auto channel = engine->open(rank, {rank}, 1);
  Block block = filled(*engine, 1, 100);
  lose_the_last(engine, die);
  if (rank == last) return;
  Channel* const it[] = {channel.get()};
  const auto fails = [&](std::string_view sentence, auto call) { expect_lost(*engine, last, sentence, call); };
  fails("try_allocate() fails after a death", [&] { return engine->try_allocate(10); });
  fails("open() fails after a death", [&] { return engine->open(rank, {rank}, 1); });
  fails("subgroup() fails after a death", [&] { return engine->subgroup(std::vector{rank}, "late"); });
  fails("try_publish() fails after a death", [&] { return engine->try_publish(*channel, block, 100); });
  fails("try_receive() fails after a death", [&] { return engine->try_receive(*channel); });
  fails("a wait for room fails after a death", [&] { return engine->wait({.publish = it}, limit()); });
  fails("a wait for a message fails after a death", [&] { return engine->wait({.receive = it}, limit()); });
  fails("post() fails after a death", [&] { return engine->post(Status::make("late", 0)), 0; });
  fails("status() fails after a death", [&] { return engine->status(0); });
  fails("holders() fails after a death", [&] { return engine->holders(*channel); });
  engine->close(*channel, End::sending);
  engine->wake();
}

void messages_and_ends_outlive_a_death(const Handle& engine, const Death& die) {
  const int rank = rank_of(*engine), last = last_of(engine);
  const auto small = engine->open(last, all_ranks(*engine), 1);
  const auto large = engine->open(last, all_ranks(*engine), 1);
  const auto closed = engine->open(last, all_ranks(*engine), 1);
  if (rank == last) {
    send(*engine, *small, 1, 10);
    send(*engine, *large, 2, 1'000'000);
    engine->close(*closed, End::sending);
  }
  for (Channel* const channel : {small.get(), large.get(), closed.get()}) {
    Channel* const it[] = {channel};
    expect(*engine, engine->wait({.receive = it}, limit()) == Woken::ready, "a message or an end arrives");
  }
  lose_the_last(engine, die);
  if (rank == last) return;
  const Lease first = receive(*engine, *small, 1, 10), second = receive(*engine, *large, 2, 1'000'000);
  expect(*engine, engine->try_receive(*closed).ended, "a channel that had ended before a death has ended after it");
  expect_lost(*engine, last, "the death is thrown once all arrived messages have been received",
              [&] { return engine->try_receive(*small); });
  expect_filled(*engine, first.bytes, 1, 10);
  expect_filled(*engine, second.bytes, 2, 1'000'000);
}

void a_rank_that_left_a_group_first_is_not_lost_to_it(const Handle& engine, const Death& die) {
  const int rank = rank_of(*engine), last = last_of(engine);
  auto left = engine->subgroup(all_ranks(*engine), "left");
  auto entered = engine->subgroup(all_ranks(*engine), "entered");
  const auto channel = left->open(last, all_ranks(*left), 1);
  if (rank == last) {
    left.reset();
  } else {
    expect(*left, !receive(*left, *channel, limit(), "conformance"), "a channel ends after its sender has left");
  }
  lose_the_last(engine, die);
  if (rank == last) return;
  const auto cause = engine->cause();
  expect(*engine, cause && cause->kind == ErrorKind::peer_lost && cause->rank == last, "the cause names the rank");
  expect_lost(*entered, last, "a death is thrown in every group of the rank",
              [&] { return entered->wait({}, limit()); });
  for (int from = 0; from < last; ++from) {
    std::vector<int> rest = all_ranks(*left);
    rest.pop_back();
    const auto among_the_rest = left->open(from, rest, 1);
    if (rank == from) send(*left, *among_the_rest, static_cast<std::uint64_t>(from), 100);
    static_cast<void>(receive(*left, *among_the_rest, static_cast<std::uint64_t>(from), 100));
  }
  expect(*left, left->wait({}, Deadline::now()) == Woken::timeout, "a group continues without a rank that has left it");
}

void a_death_reaches_the_groups_of_the_rank_and_no_others(const Handle& engine, const Death& die) {
  const int rank = rank_of(*engine), last = last_of(engine);
  auto reversed = all_ranks(*engine);
  std::reverse(reversed.begin(), reversed.end());
  std::vector<int> others = all_ranks(*engine);
  others.pop_back();
  const auto with = engine->subgroup(reversed, "with");
  const auto without = rank == last ? nullptr : engine->subgroup(others, "without");
  lose_the_last(engine, die);
  if (rank == last) return;
  expect_lost(*with, 0, "a death reaches the subgroups of the rank", [&] { return with->wait({}, limit()); });
  static_cast<void>(agree(*without, {}, limit(), "conformance"));
}

void a_death_names_the_step_that_the_rank_reported(const Handle& engine, const Death& die) {
  const int rank = rank_of(*engine), last = last_of(engine);
  if (rank == last) engine->post(Status::make("conformance", 7));
  else expect_eventually(*engine, "the other ranks see a status", [&] { return engine->status(last).step == 7; });
  lose_the_last(engine, die);
  if (rank == last) return;
  const auto cause = engine->cause();
  expect(*engine, cause && cause->step == 7, "the cause of a death has the step of the rank's last status");
  expect(*engine, cause->text().find("at step 7") != std::string::npos, "its text names that step");
}

constexpr DeathCase death_list[] = {
    {"a death names the step that the rank reported", 2, a_death_names_the_step_that_the_rank_reported},
    {"every call names the rank that died", 2, every_call_names_the_rank_that_died},
    {"messages and ends outlive a death", 2, messages_and_ends_outlive_a_death},
    {"a rank that left a group first is not lost to it", 2, a_rank_that_left_a_group_first_is_not_lost_to_it},
    {"a death reaches the groups of the rank and no others", 2, a_death_reaches_the_groups_of_the_rank_and_no_others},
};

}  // namespace

std::span<const DeathCase> death_cases() {
  return death_list;
}

}  // namespace levada::conformance
