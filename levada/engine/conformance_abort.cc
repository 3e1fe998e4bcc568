#include <fmt/format.h>

#include <string>

#include "levada/engine/conformance_kit.h"

namespace levada::conformance {
namespace {

/// Waits, without conditions, until another rank's abort makes the wait throw. Returns the exception's message.
std::string message_of_abort(const Handle& engine) {
  return expect_throws<EngineError>(*engine, "an abort ends a wait", [&] { return engine->wait({}, limit()); });
}

void expect_reason(const Handle& engine, const std::string& message, std::string_view reason) {
  if (message.find(reason) == std::string::npos) {
    fail(*engine, fmt::format("'{}' does not contain the reason of the abort, '{}'", message, reason));
  }
}

/// Aborts `group` on the last rank, once all the others have called this. Returns the board on which they posted that
/// they are ready.
Handle abort_when_all_are_ready(const Handle& engine, Engine& group, std::initializer_list<std::string_view> reasons) {
  Handle board = engine->subgroup(all_ranks(*engine), "to be ready in");
  if (rank_of(*board) != size_of(*board) - 1) {
    board->post(Status::make("ready", 0));
    return board;
  }
  for (int rank = 0; rank < rank_of(*board); ++rank) {
    expect_eventually(*engine, "the other ranks are ready for the abort",
                      [&] { return board->status(rank).operation[0] == 'r'; });
  }
  for (const std::string_view reason : reasons) group.abort(reason);
  return board;
}

void an_abort_wakes_all_ranks_with_its_reason(const Handle& engine) {
  const int last = size_of(*engine) - 1;
  const auto channel = engine->open(last, all_ranks(*engine), 1);
  const Handle board = abort_when_all_are_ready(engine, *engine, {"the dam broke at step 7"});
  Channel* const receive_from[] = {channel.get()};
  expect_reason(engine,
                expect_throws<EngineError>(*engine, "an abort wakes a wait that has no deadline",
                                           [&] { return engine->wait({.receive = receive_from}, Deadline::never()); }),
                "the dam broke at step 7");
}

void every_call_fails_after_an_abort(const Handle& engine) {
  const int rank = rank_of(*engine);
  const auto channel = engine->open(rank, {rank}, 2);
  Block block = filled(*engine, 1, 100);
  send(*engine, *channel, 2, 100);
  const Handle board = abort_when_all_are_ready(engine, *engine, {"enough"});
  expect_reason(engine, message_of_abort(engine), "enough");
  const auto fails = [&](std::string_view sentence, auto call) {
    expect_reason(engine, expect_throws<EngineError>(*engine, sentence, call), "enough");
  };
  fails("try_allocate() fails after an abort", [&] { return engine->try_allocate(10); });
  fails("open() fails after an abort", [&] { return engine->open(rank, {rank}, 1); });
  fails("subgroup() fails after an abort", [&] { return engine->subgroup(std::vector{rank}, "late"); });
  fails("try_publish() fails after an abort", [&] { return engine->try_publish(*channel, block, 100); });
  fails("a message is not delivered after an abort", [&] { return engine->try_receive(*channel); });
  fails("post() fails after an abort", [&] { return engine->post(Status::make("late", 0)), 0; });
  fails("status() fails after an abort", [&] { return engine->status(0); });
  fails("holders() fails after an abort", [&] { return engine->holders(*channel); });
  engine->close(*channel, End::sending);
  engine->wake();
  expect(*engine, engine->info().rank == rank, "info() holds after an abort");
}

void leases_outlive_an_abort(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 1);
  if (rank_of(*engine) == 0) send(*engine, *channel, 1, 50'000);
  const Lease kept = receive(*engine, *channel, 1, 50'000);
  const Handle board = abort_when_all_are_ready(engine, *engine, {"over"});
  static_cast<void>(message_of_abort(engine));
  expect_filled(*engine, kept.bytes, 1, 50'000);
}

void a_reason_has_at_most_600_bytes(const Handle& engine) {
  const std::string reason(700, 'x');
  const Handle board = abort_when_all_are_ready(engine, *engine, {reason});
  const std::string message = message_of_abort(engine);
  expect_reason(engine, message, reason.substr(0, 600));
  expect(*engine, message.find(reason.substr(0, 601)) == std::string::npos, "a reason is cut to 600 bytes");
}

void a_reason_is_cut_between_characters(const Handle& engine) {
  const std::string kept(599, 'x');
  const Handle board = abort_when_all_are_ready(engine, *engine, {kept + "\u00e9"});
  const std::string message = message_of_abort(engine);
  expect_reason(engine, message, kept);
  expect(*engine, message.find('\xc3') == std::string::npos, "a reason is cut between characters");
}

void the_first_abort_counts(const Handle& engine) {
  const Handle board = abort_when_all_are_ready(engine, *engine, {"the first reason", "the second reason"});
  expect_reason(engine, message_of_abort(engine), "the first reason");
}

void an_abort_reaches_subgroups(const Handle& engine) {
  const auto group = engine->subgroup(all_ranks(*engine), "inner");
  const auto alone = group->subgroup(std::vector{rank_of(*group)}, "innermost");
  const Handle board = abort_when_all_are_ready(engine, *engine, {"all of it"});
  expect_reason(engine, message_of_abort(alone), "all of it");
  expect_reason(engine, message_of_abort(group), "all of it");
}

void an_abort_of_a_subgroup_stays_in_it(const Handle& engine) {
  const auto group = engine->subgroup(all_ranks(*engine), "given up");
  const Handle board = abort_when_all_are_ready(engine, *group, {"only this group"});
  expect_reason(engine, message_of_abort(group), "only this group");
  meet(*engine);
}

constexpr Case abort_list[] = {
    {"an abort wakes all ranks with its reason", 1, an_abort_wakes_all_ranks_with_its_reason, true},
    {"every call fails after an abort", 1, every_call_fails_after_an_abort, true},
    {"leases outlive an abort", 1, leases_outlive_an_abort, true},
    {"a reason has at most 600 bytes", 1, a_reason_has_at_most_600_bytes, true},
    {"a reason is cut between characters", 1, a_reason_is_cut_between_characters, true},
    {"the first abort counts", 1, the_first_abort_counts, true},
    {"an abort reaches subgroups", 1, an_abort_reaches_subgroups, true},
    {"an abort of a subgroup stays in it", 1, an_abort_of_a_subgroup_stays_in_it},
};

}  // namespace

std::span<const Case> abort_cases() {
  return abort_list;
}

}  // namespace levada::conformance
