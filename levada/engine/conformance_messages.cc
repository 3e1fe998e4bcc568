#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "levada/base/copy.h"
#include "levada/engine/conformance_kit.h"

namespace levada::conformance {
namespace {

std::size_t small_bytes(int i) {
  return 1 + static_cast<std::size_t>(i) * 37 % 500;
}

void info_is_constant_and_the_same_for_all(const Handle& engine) {
  const EngineInfo& info = engine->info();
  expect(*engine, !info.name.empty(), "the engine has a name");
  expect(*engine, info.size >= 1 && info.rank >= 0 && info.rank < info.size, "the rank is below the size");
  expect(*engine, info.host_of.size() == static_cast<std::size_t>(info.size), "every rank has a host");
  ByteWriter mine;
  mine.put_sized(info.name);
  mine.put(info.size);
  for (const int host : info.host_of) mine.put(host);
  for (const Bytes& theirs : agree(*engine, mine.view(), limit(), "conformance")) {
    expect(*engine, std::equal(theirs.begin(), theirs.end(), mine.view().begin(), mine.view().end()),
           "name, size and hosts are the same on all ranks");
  }
  expect(*engine, &engine->info() == &info, "info() returns the same object");
}

void agree_returns_every_ranks_bytes_to_all_ranks(const Handle& engine) {
  for (int round = 0; round < 3; ++round) {
    const auto text = [&](int rank) {
      return std::string(static_cast<std::size_t>(rank * 700 + round), char('a' + rank));
    };
    const auto all = agree(*engine, as_bytes(text(rank_of(*engine))), limit(), "conformance");
    expect(*engine, all.size() == static_cast<std::size_t>(size_of(*engine)), "agree() returns one entry per rank");
    for (int rank = 0; rank < size_of(*engine); ++rank) {
      expect(*engine, as_text(all[static_cast<std::size_t>(rank)]) == text(rank),
             "agree() returns each rank's own bytes");
    }
  }
}

void messages_arrive_in_order(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 4);
  const Flow flow{.channel = channel.get(), .count = 300, .seed = seed_by_sender, .bytes = small_bytes};
  pump(*engine, std::span(&flow, 1));
  expect_nothing(*engine, *channel);
  meet(*engine);
}

void all_ranks_multicast_concurrently(const Handle& engine) {
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<Flow> flows;
  for (const int from : all_ranks(*engine)) {
    channels.push_back(engine->open(from, all_ranks(*engine), 2));
    flows.push_back({.channel = channels.back().get(), .count = 40, .seed = seed_by_sender, .bytes = small_bytes});
  }
  pump(*engine, flows);
  meet(*engine);
}

std::size_t varied_bytes(int i) {
  constexpr std::size_t sizes[] = {1,    7,     8,     63,    64,        65, 4095,      4096,
                                   4097, 65535, 65536, 65537, 1'000'003, 1,  5'242'881, 2};
  return sizes[static_cast<std::size_t>(i) % std::size(sizes)];
}

void sizes_vary_from_one_byte_to_megabytes(const Handle& engine) {
  const int from = size_of(*engine) - 1;
  const auto channel = engine->open(from, all_ranks(*engine), 3);
  const Flow flow{.channel = channel.get(), .count = 16, .seed = seed_by_sender, .bytes = varied_bytes};
  pump(*engine, std::span(&flow, 1));
  meet(*engine);
}

void a_message_may_be_shorter_than_its_block(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 1);
  if (rank_of(*engine) == 0) publish(*engine, *channel, filled(*engine, 5, 10'000), 123, limit(), "conformance");
  static_cast<void>(receive(*engine, *channel, 5, 123));
  meet(*engine);
}

void channels_of_the_same_ranks_do_not_mix(const Handle& engine) {
  const int last = size_of(*engine) - 1;
  const int rank = rank_of(*engine);
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < 16 && (rank == 0 || rank == last); ++i) channels.push_back(engine->open(0, {last}, 2));
  const auto seed = [](std::size_t channel, std::size_t round) { return channel * 10 + round; };
  for (std::size_t round = 0; rank == 0 && round < 2; ++round) {
    for (std::size_t i = 0; i < 16; ++i) send(*engine, *channels[i], seed(i, round), 100);
  }
  for (std::size_t i = 16; rank == last && i-- > 0;) {
    for (std::size_t round = 0; round < 2; ++round)
      static_cast<void>(receive(*engine, *channels[i], seed(i, round), 100));
    expect_nothing(*engine, *channels[i]);
  }
  meet(*engine);
}

void receivers_may_be_any_ranks(const Handle& engine) {
  const int size = size_of(*engine);
  const int rank = rank_of(*engine);
  for (unsigned mask = 1; mask < (1U << size); mask += 1 + mask / 5) {
    std::vector<int> to;
    for (int r = 0; r < size; ++r) {
      if ((mask >> r & 1U) != 0) to.push_back(r);
    }
    const int from = static_cast<int>(mask) % size;
    const bool receives = (mask >> rank & 1U) != 0;
    if (rank != from && !receives) continue;
    const auto channel = engine->open(from, to, 1);
    expect(*engine, channel->from() == from && channel->to() == to && channel->window() == 1,
           "a channel knows its sender, receivers and window");
    if (rank == from) send(*engine, *channel, mask, 50);
    if (receives) static_cast<void>(receive(*engine, *channel, mask, 50));
  }
  meet(*engine);
}

void messages_wait_for_receivers_that_open_later(const Handle& engine) {
  const int last = size_of(*engine) - 1;
  const int rank = rank_of(*engine);
  if (rank == 0 || rank == last) {
    const auto go = engine->open(0, {last}, 1);
    std::shared_ptr<Channel> channel;
    if (rank == 0) {
      channel = engine->open(0, {last}, 3);
      for (std::uint64_t i = 0; i < 3; ++i) send(*engine, *channel, i, 2000);
      if (last != 0) channel.reset();
      send(*engine, *go, 7, 7);
    }
    if (rank == last) {
      static_cast<void>(receive(*engine, *go, 7, 7));
      if (last != 0) channel = engine->open(0, {last}, 3);
      for (std::uint64_t i = 0; i < 3; ++i) static_cast<void>(receive(*engine, *channel, i, 2000));
      if (last != 0) {
        expect(*engine, !receive(*engine, *channel, limit(), "conformance"),
               "a channel closed before it was opened ends");
      }
    }
  }
  meet(*engine);
}

void a_window_bounds_the_messages_in_flight(const Handle& engine) {
  const auto to = all_ranks(*engine);
  const auto channel = engine->open(0, to, 2);
  // A rank that forwards has a window of received messages, a window of sent ones, and one message between them.
  // Forwarding takes time.
  const bool forwards = engine->info().name.find('+') != std::string::npos;
  const auto num_forwarders = static_cast<std::uint64_t>(forwards ? size_of(*engine) - 1 : 0);
  const std::uint64_t max_under_way = 2 + 5 * num_forwarders, count = max_under_way + 1;
  if (rank_of(*engine) != 0) {
    meet(*engine);
    for (std::uint64_t i = 0; i < count; ++i) static_cast<void>(receive(*engine, *channel, i, 100));
    return meet(*engine);
  }
  send(*engine, *channel, 0, 100);
  send(*engine, *channel, 1, 100);
  std::uint64_t published = 2, received = 0;
  Block next = filled(*engine, published, 100);
  expect(*engine, !engine->try_publish(*channel, next, 100), "a full window rejects a message");
  expect(*engine, static_cast<bool>(next), "a rejected block stays with its owner");
  static_cast<void>(receive(*engine, *channel, received++, 100));
  const auto until = Deadline::after(std::chrono::milliseconds(forwards ? 200 : 0));
  while (size_of(*engine) > 1) {
    if (engine->try_publish(*channel, next, 100)) {
      expect(*engine, ++published <= max_under_way, "the window has room only after the slowest receiver");
      next = filled(*engine, published, 100);
      static_cast<void>(receive(*engine, *channel, received++, 100));
    } else if (until.expired()) {
      break;
    } else {
      std::this_thread::yield();
    }
  }
  meet(*engine);
  while (published < count) {
    publish(*engine, *channel, std::move(next), 100, limit(), "conformance");
    static_cast<void>(receive(*engine, *channel, received++, 100));
    if (++published < count) next = filled(*engine, published, 100);
  }
  static_cast<void>(receive(*engine, *channel, received, 100));
  meet(*engine);
}

void shared_memory_avoids_copies(const Handle& engine) {
  if (!engine->shares_memory()) return;
  const auto there = engine->open(0, all_ranks(*engine), 2);
  std::vector<std::shared_ptr<Channel>> back;
  for (int rank = 1; rank < size_of(*engine); ++rank) {
    back.push_back(rank_of(*engine) == 0 || rank_of(*engine) == rank ? engine->open(rank, {0}, 1) : nullptr);
  }
  meet(*engine);
  const std::uint64_t before = copied_bytes();
  if (rank_of(*engine) == 0) send(*engine, *there, 9, 1'000'000);
  static_cast<void>(receive(*engine, *there, 9, 1'000'000));
  if (rank_of(*engine) == 0) {
    for (const auto& channel : back) static_cast<void>(receive(*engine, *channel, 1, 1));
    expect(*engine, copied_bytes() == before, "no payload is copied between a block and its leases");
  } else {
    send(*engine, *back[static_cast<std::size_t>(rank_of(*engine) - 1)], 1, 1);
  }
  meet(*engine);
}

void open_rejects_invalid_arguments(const Handle& engine) {
  const int size = size_of(*engine);
  const int rank = rank_of(*engine);
  const auto refuses = [&](std::string_view sentence, int from, std::vector<int> to, int window) {
    expect_throws<InvalidArgument>(*engine, sentence, [&] { return engine->open(from, to, window); });
  };
  refuses("a channel without receivers is rejected", rank, {}, 1);
  refuses("a receiver out of range is rejected", rank, {size}, 1);
  refuses("a negative receiver is rejected", rank, {-1}, 1);
  refuses("a sender out of range is rejected", size, {rank}, 1);
  refuses("a receiver named twice is rejected", rank, {rank, rank}, 1);
  refuses("a window below one is rejected", rank, {rank}, 0);
  if (size > 1) refuses("a channel of other ranks is rejected", (rank + 1) % size, {(rank + 1) % size}, 1);
  meet(*engine);
  const auto channel = engine->open(0, all_ranks(*engine), 1);
  if (rank == 0) send(*engine, *channel, 3, 30);
  static_cast<void>(receive(*engine, *channel, 3, 30));
  meet(*engine);
}

void the_wrong_end_of_a_channel_is_rejected(const Handle& engine) {
  if (size_of(*engine) > 1 && rank_of(*engine) < 2) {
    const auto channel = engine->open(0, {1}, 1);
    Channel* const wrong[] = {channel.get()};
    if (rank_of(*engine) == 0) {
      expect_throws<InvalidArgument>(*engine, "only a receiver receives",
                                     [&] { return engine->try_receive(*channel); });
      expect_throws<InvalidArgument>(*engine, "only a receiver waits for messages",
                                     [&] { return engine->wait({.receive = wrong}, Deadline::now()); });
    } else {
      Block block = filled(*engine, 0, 10);
      expect_throws<InvalidArgument>(*engine, "only the sender publishes",
                                     [&] { return engine->try_publish(*channel, block, 10); });
      expect_throws<InvalidArgument>(*engine, "only the sender asks for holders",
                                     [&] { return engine->holders(*channel); });
      expect_throws<InvalidArgument>(*engine, "only the sender waits for room",
                                     [&] { return engine->wait({.publish = wrong}, Deadline::now()); });
    }
  }
  meet(*engine);
}

void a_different_window_fails_on_all_ranks(const Handle& engine) {
  const int last = size_of(*engine) - 1;
  std::shared_ptr<Channel> channel;
  expect_throws<InvalidArgument>(*engine, "all members see that a channel was opened with another window", [&] {
    meet(*engine);  // otherwise the group could end while a rank is still in the previous case
    channel = engine->open(0, all_ranks(*engine), rank_of(*engine) == last ? 3 : 2);
    if (rank_of(*engine) == 0) publish(*engine, *channel, filled(*engine, 1, 100), 100, limit(), "conformance");
    return engine->wait({}, limit());
  });
  const auto cause = engine->cause();
  expect(*engine, cause && cause->kind == ErrorKind::invalid_argument && cause->rank == last,
         "the cause names the rank that opened it differently");
}

void a_window_may_exceed_the_queue_of_an_engine(const Handle& engine) {
  constexpr std::uint64_t messages = 3000;
  auto others = all_ranks(*engine);
  others.erase(others.begin());
  const auto channel = engine->open(0, others, messages);
  for (std::uint64_t i = 0; i < messages; ++i) {
    if (rank_of(*engine) == 0) send(*engine, *channel, i, 8);
    else static_cast<void>(receive(*engine, *channel, i, 8));
  }
  meet(*engine);
}

constexpr Case messages_list[] = {
    {"info is constant and the same for all", 1, info_is_constant_and_the_same_for_all},
    {"agree returns every rank's bytes to all ranks", 1, agree_returns_every_ranks_bytes_to_all_ranks},
    {"messages arrive in order", 1, messages_arrive_in_order},
    {"all ranks multicast concurrently", 1, all_ranks_multicast_concurrently},
    {"sizes vary from one byte to megabytes", 1, sizes_vary_from_one_byte_to_megabytes},
    {"a message may be shorter than its block", 1, a_message_may_be_shorter_than_its_block},
    {"channels of the same ranks do not mix", 1, channels_of_the_same_ranks_do_not_mix},
    {"a window may exceed the queue of an engine", 2, a_window_may_exceed_the_queue_of_an_engine},
    {"receivers may be any ranks", 1, receivers_may_be_any_ranks},
    {"messages wait for receivers that open later", 1, messages_wait_for_receivers_that_open_later},
    {"a window bounds the messages in flight", 1, a_window_bounds_the_messages_in_flight},
    {"shared memory avoids copies", 1, shared_memory_avoids_copies},
    {"open rejects invalid arguments", 1, open_rejects_invalid_arguments},
    {"a different window fails on all ranks", 2, a_different_window_fails_on_all_ranks, true},
    {"the wrong end of a channel is rejected", 2, the_wrong_end_of_a_channel_is_rejected},
};

}  // namespace

std::span<const Case> message_cases() {
  return messages_list;
}

}  // namespace levada::conformance
