
#include "levada/engine/conformance_kit.h"

namespace levada::conformance {
namespace {

void expect_end(const Handle& engine, Channel& channel) {
  expect(*engine, !receive(*engine, channel, limit(), "conformance"), "no message follows the last");
  const auto after = engine->try_receive(channel);
  expect(*engine, after.ended && !after.message, "a channel that was closed and drained has ended");
  Channel* const ended[] = {&channel};
  expect(*engine, engine->wait({.receive = ended}, limit()) == Woken::ready, "the end of a channel ends a wait for it");
}

void await_message(const Handle& engine, Channel& channel) {
  Channel* const it[] = {&channel};
  expect(*engine, engine->wait({.receive = it}, limit()) == Woken::ready, "a message arrives");
}

void a_closed_channel_ends_after_its_last_message(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 3);
  if (rank_of(*engine) == 0) {
    for (std::uint64_t i = 0; i < 3; ++i) send(*engine, *channel, i, 100);
    engine->close(*channel, End::sending);
    Block block = filled(*engine, 3, 100);
    expect_throws<InvalidArgument>(*engine, "nothing can be published on a closed channel",
                                   [&] { return engine->try_publish(*channel, block, 100); });
  }
  for (std::uint64_t i = 0; i < 3; ++i) {
    await_message(engine, *channel);
    const auto received = engine->try_receive(*channel);
    expect(*engine, received.message && !received.ended, "a channel has not ended before its last message is received");
    expect_filled(*engine, received.message->bytes, i, 100);
  }
  expect_end(engine, *channel);
  engine->close(*channel, End::receiving);
  meet(*engine);
}

void an_empty_channel_may_end(const Handle& engine) {
  auto channel = engine->open(0, all_ranks(*engine), 1);
  meet(*engine);
  if (rank_of(*engine) == 0) engine->close(*channel, End::sending);
  expect_end(engine, *channel);
  meet(*engine);
}

void destroying_a_channel_closes_it(const Handle& engine) {
  const int rank = rank_of(*engine);
  if (size_of(*engine) > 1 && rank < 2) {
    auto there = engine->open(0, {1}, 2);
    auto back = engine->open(1, {0}, 2);
    if (rank == 0) {
      send(*engine, *there, 1, 100);
      there.reset();
      expect_end(engine, *back);
    } else {
      static_cast<void>(receive(*engine, *there, 1, 100));
      expect_end(engine, *there);
      back.reset();
    }
  }
  meet(*engine);
}

void a_receiver_may_close_while_others_continue(const Handle& engine) {
  constexpr std::uint64_t messages = 20;
  const int last = size_of(*engine) - 1;
  const auto channel = engine->open(0, all_ranks(*engine), 2);
  const auto pace = engine->open(0, all_ranks(*engine), 1);
  if (rank_of(*engine) == last && last != 0) {
    static_cast<void>(receive(*engine, *channel, 0, 100));
    engine->close(*channel, End::receiving);
    expect_end(engine, *channel);
  } else {
    for (std::uint64_t i = 0; i < messages; ++i) {
      if (rank_of(*engine) == 0) send(*engine, *channel, i, 100);
      static_cast<void>(receive(*engine, *channel, i, 100));
    }
  }
  if (rank_of(*engine) == 0) send(*engine, *pace, 0, 1);
  static_cast<void>(receive(*engine, *pace, 0, 1));
  meet(*engine);
}

void a_channel_has_ended_for_a_receiver_that_has_closed_it(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 2);
  if (rank_of(*engine) == 0) send(*engine, *channel, 1, 100);
  if (rank_of(*engine) != 0) {
    await_message(engine, *channel);
    engine->close(*channel, End::receiving);
    expect_end(engine, *channel);
  }
  meet(*engine);
}

void a_sender_without_receivers_continues(const Handle& engine) {
  const int rank = rank_of(*engine);
  if (size_of(*engine) > 1 && rank < 2) {
    auto channel = engine->open(0, {1}, 1);
    if (rank == 1) channel.reset();
    for (std::uint64_t i = 0; rank == 0 && i < 50; ++i) send(*engine, *channel, i, 200'000);
    if (rank == 0) {
      expect_eventually(*engine, "messages without remaining receivers are returned",
                        [&] { return engine->holders(*channel).empty(); });
    }
  }
  meet(*engine);
}

void a_sender_among_the_receivers_closes_its_sending_end_first(const Handle& engine) {
  const auto channel = engine->open(rank_of(*engine), {rank_of(*engine)}, 2);
  send(*engine, *channel, 1, 64);
  send(*engine, *channel, 2, 64);
  engine->close(*channel, End::sending);
  static_cast<void>(receive(*engine, *channel, 1, 64));
  static_cast<void>(receive(*engine, *channel, 2, 64));
  expect_end(engine, *channel);
}

void leaving_ends_the_channels_of_a_sender(const Handle& engine) {
  auto group = engine->subgroup(all_ranks(*engine), "left by its sender");
  auto channel = group->open(0, all_ranks(*group), 2);
  if (rank_of(*engine) == 0) {
    send(*group, *channel, 1, 1000);
    send(*group, *channel, 2, 1000);
    static_cast<void>(receive(*group, *channel, 1, 1000));
    group.reset();
  } else {
    static_cast<void>(receive(*group, *channel, 1, 1000));
    static_cast<void>(receive(*group, *channel, 2, 1000));
    expect_end(group, *channel);
  }
  meet(*engine);
}

void a_channel_that_must_be_closed_does_not_end_when_its_sender_leaves(const Handle& engine) {
  auto group = engine->subgroup(all_ranks(*engine), "left without a word");
  const auto all = all_ranks(*group);
  auto closed = group->open(0, all, 1, {.must_be_closed = true}),
       left = group->open(0, all, 1, {.must_be_closed = true});
  auto usual = group->open(0, all, 1);
  if (rank_of(*engine) == 0) {
    group->close(*closed, End::sending);
    group.reset();
    usual.reset();
  } else {
    expect_end(group, *closed);
    expect_end(group, *usual);
    expect_nothing(*group, *left);
    Channel* const it[] = {left.get()};
    expect(*engine, group->wait({.receive = it}, Deadline::now()) == Woken::timeout,
           "a channel that must be closed does not end");
  }
  left.reset();
  meet(*engine);
}

void leaving_counts_as_receiving(const Handle& engine) {
  auto group = engine->subgroup(all_ranks(*engine), "left by its receivers");
  auto channel = group->open(0, all_ranks(*group), 1);
  if (rank_of(*engine) != 0) group.reset();
  for (std::uint64_t i = 0; rank_of(*engine) == 0 && i < 30; ++i) {
    send(*group, *channel, i, 1000);
    static_cast<void>(receive(*group, *channel, i, 1000));
  }
  meet(*engine);
}

void leaving_is_no_error_for_the_other_ranks(const Handle& engine) {
  const int last = size_of(*engine) - 1;
  auto group = engine->subgroup(all_ranks(*engine), "left by one");
  const auto channel = group->open(0, all_ranks(*group), 1);
  if (rank_of(*engine) == last && last != 0) group.reset();
  meet(*engine);
  for (std::uint64_t i = 0; group && i < 3; ++i) {
    if (rank_of(*group) == 0) send(*group, *channel, i, 1000);
    static_cast<void>(receive(*group, *channel, i, 1000));
    static_cast<void>(allocate(*group, 100, limit(), "conformance"));
    group->post(Status::make("still here", 1));
  }
  meet(*engine);
}

constexpr Case ending_list[] = {
    {"a closed channel ends after its last message", 1, a_closed_channel_ends_after_its_last_message},
    {"an empty channel may end", 1, an_empty_channel_may_end},
    {"destroying a channel closes it", 2, destroying_a_channel_closes_it},
    {"a receiver may close while others continue", 2, a_receiver_may_close_while_others_continue},
    {"a channel has ended for a receiver that has closed it", 2, a_channel_has_ended_for_a_receiver_that_has_closed_it},
    {"a sender without receivers continues", 2, a_sender_without_receivers_continues},
    {"a sender among the receivers closes its sending end first", 1,
     a_sender_among_the_receivers_closes_its_sending_end_first},
    {"leaving ends the channels of a sender", 2, leaving_ends_the_channels_of_a_sender},
    {"a channel that must be closed does not end when its sender leaves", 2,
     a_channel_that_must_be_closed_does_not_end_when_its_sender_leaves},
    {"leaving counts as receiving", 2, leaving_counts_as_receiving},
    {"leaving is no error for the other ranks", 2, leaving_is_no_error_for_the_other_ranks},
};

}  // namespace

std::span<const Case> ending_cases() {
  return ending_list;
}

}  // namespace levada::conformance
