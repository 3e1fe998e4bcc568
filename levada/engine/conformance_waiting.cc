#include <fmt/format.h>

#include <future>

#include "levada/engine/conformance_kit.h"

namespace levada::conformance {
namespace {

void a_wait_ends_at_its_deadline(const Handle& engine) {
  const auto channel = engine->open(rank_of(*engine), {rank_of(*engine)}, 1);
  Channel* const receive_from[] = {channel.get()};
  const auto begin = Clock::now();
  const auto woken = engine->wait({.receive = receive_from}, Deadline::after(std::chrono::milliseconds(20)));
  expect(*engine, woken == Woken::timeout, "a wait without an event times out");
  expect(*engine, Clock::now() - begin >= std::chrono::milliseconds(20), "a wait lasts until its deadline");
  expect(*engine, engine->wait({.receive = receive_from}, Deadline::now()) == Woken::timeout,
         "a passed deadline turns a wait into a poll");
  expect(*engine, engine->wait({}, Deadline::after(std::chrono::milliseconds(1))) == Woken::timeout,
         "a wait without conditions lasts until its deadline");
}

void a_condition_that_already_holds_ends_a_wait(const Handle& engine) {
  const auto channel = engine->open(rank_of(*engine), {rank_of(*engine)}, 1);
  Channel* const it[] = {channel.get()};
  expect(*engine, engine->wait({.publish = it}, Deadline::now()) == Woken::ready, "room is already available");
  expect(*engine, engine->wait({.allocate = 1000}, Deadline::now()) == Woken::ready, "memory is already available");
  send(*engine, *channel, 1, 100);
  expect(*engine, engine->wait({.publish = it}, Deadline::now()) == Woken::timeout, "a full window has no room");
  for (int i = 0; i < 2; ++i) {
    expect(*engine, engine->wait({.receive = it}, limit()) == Woken::ready,
           "a message ends every wait until it is received");
  }
  static_cast<void>(receive(*engine, *channel, 1, 100));
  expect(*engine, engine->wait({.publish = it}, limit()) == Woken::ready, "receiving makes room");
  const std::atomic<bool> stop = true;
  expect(*engine, engine->wait({.stop = &stop}, Deadline::now()) == Woken::stopped, "a stop that is set ends a wait");
}

void a_message_wakes_its_receiver(const Handle& engine) {
  const int rank = rank_of(*engine);
  const int next = (rank + 1) % size_of(*engine);
  const int before = (rank + size_of(*engine) - 1) % size_of(*engine);
  std::shared_ptr<Channel> out, in;
  // A token circulates, so every rank except one is waiting. Neighbors open the channels that they share in the same
  // order.
  if (next == rank) out = in = engine->open(rank, {rank}, 1);
  else if (rank == 0) out = engine->open(rank, {next}, 1), in = engine->open(before, {rank}, 1);
  else in = engine->open(before, {rank}, 1), out = engine->open(rank, {next}, 1);
  for (std::uint64_t round = 0; round < 100; ++round) {
    if (rank == 0) send(*engine, *out, round, 64);
    static_cast<void>(receive(*engine, *in, round, 64));
    if (rank != 0) send(*engine, *out, round, 64);
  }
  meet(*engine);
}

void a_message_on_any_channel_ends_a_wait(const Handle& engine) {
  const int rank = rank_of(*engine);
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<Channel*> receive_from;
  for (int from = 1; from < size_of(*engine); ++from) {
    channels.push_back(rank == 0 || rank == from ? engine->open(from, {0}, 1) : nullptr);
    if (rank == 0) receive_from.push_back(channels.back().get());
  }
  if (rank != 0) send(*engine, *channels[static_cast<std::size_t>(rank - 1)], static_cast<std::uint64_t>(rank), 10);
  while (rank == 0 && !receive_from.empty()) {
    expect(*engine, engine->wait({.receive = receive_from}, limit()) == Woken::ready,
           "a message on one of many channels wakes");
    const auto received = std::erase_if(receive_from, [&](Channel* channel) {
      const auto lease = engine->try_receive(*channel).message;
      if (lease) expect_filled(*engine, lease->bytes, static_cast<std::uint64_t>(channel->from()), 10);
      return lease.has_value();
    });
    expect(*engine, received > 0, "a wait that ends as ready means that something can be received");
  }
  meet(*engine);
}

void stop_and_wake_end_a_wait(const Handle& engine) {
  const auto channel = engine->open(rank_of(*engine), {rank_of(*engine)}, 1);
  Channel* const receive_from[] = {channel.get()};
  for (int i = 0; i < 30; ++i) {
    std::atomic<bool> stop = false;
    auto waiting =
        std::async(std::launch::async, [&] { return engine->wait({.receive = receive_from, .stop = &stop}, limit()); });
    engine->wake();
    stop = true;
    engine->wake();
    expect(*engine, waiting.get() == Woken::stopped, "stop and wake() end a wait");
  }
}

void waking_without_a_condition_ends_no_wait(const Handle& engine) {
  std::atomic<bool> over = false;
  auto waking = std::async(std::launch::async, [&] {
    while (!over) engine->wake(), std::this_thread::yield();
  });
  const auto woken = engine->wait({}, Deadline::after(std::chrono::milliseconds(20)));
  over = true;
  waking.get();
  expect(*engine, woken == Woken::timeout, "wake() only makes a wait recheck its conditions");
}

void threads_wait_for_their_own_channels(const Handle& engine) {
  constexpr int threads = 4;
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < threads; ++i) channels.push_back(engine->open(i % size_of(*engine), all_ranks(*engine), 2));
  std::vector<std::future<void>> running;
  for (const auto& channel : channels) {
    running.push_back(std::async(std::launch::async, [&engine, &channel] {
      const auto bytes = [](int i) { return static_cast<std::size_t>(1 + i * 100); };
      const Flow flow{.channel = channel.get(), .count = 60, .seed = seed_by_sender, .bytes = bytes};
      pump(*engine, std::span(&flow, 1));
    }));
  }
  for (auto& thread : running) thread.get();
  meet(*engine);
}

void sender_and_receiver_of_a_channel_may_be_two_threads(const Handle& engine) {
  const auto channel = engine->open(rank_of(*engine), {rank_of(*engine)}, 2);
  auto sending = std::async(std::launch::async, [&] {
    for (std::uint64_t i = 0; i < 200; ++i) send(*engine, *channel, i, 500);
    engine->close(*channel, End::sending);
  });
  for (std::uint64_t i = 0; i < 200; ++i) static_cast<void>(receive(*engine, *channel, i, 500));
  expect(*engine, !receive(*engine, *channel, limit(), "conformance"), "the channel ends");
  sending.get();
}

void ranks_that_flood_each_other_do_not_block(const Handle& engine) {
  const int rank = rank_of(*engine);
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<Flow> flows;
  for (int from = 0; from < size_of(*engine); ++from) {
    for (int to = 0; to < size_of(*engine); ++to) {
      if (rank != from && rank != to) continue;
      channels.push_back(engine->open(from, {to}, 1));
      const auto bytes = [](int i) { return i % 8 == 0 ? std::size_t{100'000} : std::size_t{10}; };
      flows.push_back({.channel = channels.back().get(), .count = 25, .seed = seed_by_sender, .bytes = bytes});
    }
  }
  pump(*engine, flows);
  meet(*engine);
}

void room_wakes_a_blocked_sender(const Handle& engine) {
  const int last = size_of(*engine) - 1;
  const int rank = rank_of(*engine);
  const auto channel = rank == 0 || rank == last ? engine->open(0, {last}, 1) : nullptr;
  for (std::uint64_t i = 0; i < 100; ++i) {
    if (rank == 0) send(*engine, *channel, i, 100);
    if (rank == last) static_cast<void>(receive(*engine, *channel, i, 100));
  }
  meet(*engine);
}

/// Waits until all ranks have called it. Does not use agree(), which posts on the board that it waits.
void meet_in_silence(Engine& engine) {
  std::vector<std::shared_ptr<Channel>> channels;
  for (const int rank : all_ranks(engine)) channels.push_back(engine.open(rank, all_ranks(engine), 1));
  send(engine, *channels[static_cast<std::size_t>(rank_of(engine))], 0, 8);
  for (const auto& channel : channels) static_cast<void>(receive(engine, *channel, 0, 8));
}

void a_posted_status_can_be_read_by_all(const Handle& engine) {
  const auto group = engine->subgroup(all_ranks(*engine), "board");
  for (const int rank : all_ranks(*group)) {
    expect(*engine, group->status(rank).operation[0] == '\0', "a rank that has posted nothing has a blank status");
  }
  meet_in_silence(*engine);
  group->post(Status::make("first", 1));
  group->post(
      Status::make("posted", 100 + rank_of(*group), rank_of(*group), fmt::format("detail {}", rank_of(*group))));
  for (const int rank : all_ranks(*group)) {
    expect_eventually(*engine, "the status posted last is read",
                      [&] { return std::string_view(group->status(rank).operation.data()) == "posted"; });
    const Status status = group->status(rank);
    expect(*engine, status.step == 100 + rank && status.waiting_for == rank, "a status arrives complete");
    expect(*engine, status.detail.data() == fmt::format("detail {}", rank), "a status arrives complete");
    expect(*engine, status.since_ns > 0, "a status has a start time");
  }
  expect_throws<InvalidArgument>(*engine, "a rank out of range is rejected",
                                 [&] { return group->status(size_of(*group)); });
  expect_throws<InvalidArgument>(*engine, "a negative rank is rejected", [&] { return group->status(-1); });
  meet_in_silence(*engine);
}

void a_rank_has_a_status_in_each_group(const Handle& engine) {
  const auto inner = engine->subgroup(all_ranks(*engine), "board");
  engine->post(Status::make("outer", 1));
  inner->post(Status::make("inner", 2));
  const auto shows = [](Engine& group, int rank, std::string_view operation) {
    return std::string_view(group.status(rank).operation.data()) == operation;
  };
  for (const int rank : all_ranks(*engine)) {
    expect_eventually(*engine, "a group shows what was posted in it",
                      [&] { return shows(*engine, rank, "outer") && shows(*inner, rank, "inner"); });
  }
  meet_in_silence(*engine);
}

void a_wait_polls_while_it_lasts(const Handle& engine) {
  struct Interruption {};
  const auto channel = engine->open(rank_of(*engine), {rank_of(*engine)}, 1);
  Channel* const it[] = {channel.get()};
  int polls = 0;
  const std::function<void()> interrupt = [&] {
    if (++polls == 3) throw Interruption();
  };
  bool is_interrupted = false;
  try {
    engine->wait({.receive = it, .poll = &interrupt}, limit());
  } catch (const Interruption&) {
    is_interrupted = true;
  }
  expect(*engine, is_interrupted && polls == 3, "a wait polls repeatedly and rethrows the poll's exception");
  polls = 0;
  expect(*engine, engine->wait({.publish = it, .poll = &interrupt}, limit()) == Woken::ready,
         "room is already available");
  expect(*engine, engine->wait({.receive = it, .poll = &interrupt}, Deadline::now()) == Woken::timeout,
         "a wait without a message times out");
  expect(*engine, polls == 0, "a wait that does not sleep does not poll");
  const std::function<void()> nothing = [] {};
  const auto deadline = Deadline::after(std::chrono::milliseconds(20));
  const auto woken = engine->wait({.receive = it, .poll = &nothing}, deadline);
  expect(*engine, woken == Woken::timeout && deadline.expired(), "a wait that polls lasts until its deadline");
  const std::function<void()> send_one = [&] { send(*engine, *channel, 3, 30); };
  expect(*engine, engine->wait({.receive = it, .poll = &send_one}, limit()) == Woken::ready,
         "a condition that the poll establishes ends the wait");
  static_cast<void>(receive(*engine, *channel, 3, 30));
}

void a_change_calls_the_hook_while_no_thread_waits(const Handle& engine) {
  const auto num_calls = std::make_shared<std::atomic<int>>(0);
  try {
    engine->on_change([num_calls] { ++*num_calls; });
  } catch (const Unsupported&) {
    return;  // its messages are seen only while a thread waits
  }
  const auto channel = engine->open(0, all_ranks(*engine), 1);
  for (std::uint64_t i = 0; i < 20; ++i) {
    if (rank_of(*engine) == 0) send(*engine, *channel, i, 100);
    while (true) {
      const int seen = *num_calls;
      if (const auto received = engine->try_receive(*channel).message) {
        expect_filled(*engine, received->bytes, i, 100);
        break;
      }
      expect_eventually(*engine, "a message calls the hook", [&] { return *num_calls != seen; });
    }
  }
  engine->on_change({});
  meet(*engine);
}

constexpr Case waiting_list[] = {
    {"a wait ends at its deadline", 1, a_wait_ends_at_its_deadline},
    {"a condition that already holds ends a wait", 1, a_condition_that_already_holds_ends_a_wait},
    {"a message wakes its receiver", 1, a_message_wakes_its_receiver},
    {"a message on any channel ends a wait", 2, a_message_on_any_channel_ends_a_wait},
    {"stop and wake end a wait", 1, stop_and_wake_end_a_wait},
    {"waking without a condition ends no wait", 1, waking_without_a_condition_ends_no_wait},
    {"threads wait for their own channels", 1, threads_wait_for_their_own_channels},
    {"sender and receiver of a channel may be two threads", 1, sender_and_receiver_of_a_channel_may_be_two_threads},
    {"ranks that flood each other do not block", 1, ranks_that_flood_each_other_do_not_block},
    {"a rank has a status in each group", 1, a_rank_has_a_status_in_each_group},
    {"a wait polls while it lasts", 1, a_wait_polls_while_it_lasts},
    {"room wakes a blocked sender", 2, room_wakes_a_blocked_sender},
    {"a change calls the hook while no thread waits", 1, a_change_calls_the_hook_while_no_thread_waits},
    {"a posted status can be read by all", 1, a_posted_status_can_be_read_by_all},
};

}  // namespace

std::span<const Case> waiting_cases() {
  return waiting_list;
}

}  // namespace levada::conformance
