#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <future>
#include <limits>
#include <set>

#include "levada/engine/conformance_kit.h"

namespace levada::conformance {
namespace {

std::uintptr_t address_of(const Block& block) {
  return reinterpret_cast<std::uintptr_t>(block.memory().data());
}

void blocks_are_as_large_as_asked_for_and_page_aligned(const Handle& engine) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, std::size_t{3'000'001}}) {
    const Block block = allocate(*engine, bytes, limit(), "conformance");
    expect(*engine, block.memory().size() >= bytes, "a block is at least as large as requested");
    expect(*engine, address_of(block) % 4096 == 0, "a block begins on a page");
    block.memory().front() = block.memory().back() = std::byte{1};
  }
}

void blocks_are_reused(const Handle& engine) {
  std::set<std::uintptr_t> addresses;
  for (int i = 0; i < 500; ++i) addresses.insert(address_of(allocate(*engine, 1 << 20, limit(), "conformance")));
  expect(*engine, addresses.size() <= 8, "a block that was destroyed unpublished is reused");
}

void blocks_in_use_are_distinct(const Handle& engine) {
  std::vector<Block> blocks;
  for (std::uint64_t i = 0; i < 20; ++i) blocks.push_back(filled(*engine, i, 10'000 + i * 1000));
  for (std::uint64_t i = 0; i < 20; ++i) {
    expect_filled(*engine, blocks[i].memory().first(10'000 + i * 1000), i, 10'000 + i * 1000);
  }
}

void a_block_that_can_never_fit_is_rejected(const Handle& engine) {
  const std::string message =
      expect_throws<InvalidArgument>(*engine, "a block larger than the engine can ever allocate is rejected",
                                     [&] { return engine->try_allocate(std::numeric_limits<std::size_t>::max() / 2); });
  expect(*engine, message.find("iB") != std::string::npos, "the error states how much the engine can allocate");
}

void a_wait_for_a_block_that_can_never_fit_is_rejected(const Handle& engine) {
  expect_throws<InvalidArgument>(
      *engine, "a wait for a block larger than the engine can ever allocate is rejected",
      [&] { return engine->wait({.allocate = std::numeric_limits<std::size_t>::max() / 2}, Deadline::now()); });
}

void blocks_may_change_threads(const Handle& engine) {
  const auto channel = engine->open(rank_of(*engine), {rank_of(*engine)}, 1);
  auto made = std::async(std::launch::async, [&] { return filled(*engine, 3, 5000); });
  publish(*engine, *channel, made.get(), 5000, limit(), "conformance");
  static_cast<void>(receive(*engine, *channel, 3, 5000));
  Block other = filled(*engine, 4, 5000);
  std::async(std::launch::async, [moved = std::move(other)] {}).get();
}

void invalid_blocks_are_rejected(const Handle& engine) {
  const auto channel = engine->open(rank_of(*engine), {rank_of(*engine)}, 1);
  const auto refuses = [&](std::string_view sentence, Block& block, std::size_t bytes) {
    expect_throws<InvalidArgument>(*engine, sentence, [&] { return engine->try_publish(*channel, block, bytes); });
  };
  Block block = filled(*engine, 1, 1000);
  refuses("an empty message is rejected", block, 0);
  refuses("a message larger than its block is rejected", block, block.memory().size() + 1);
  Block empty;
  refuses("an empty block is rejected", empty, 1);
  Block foreign = foreign_block(4096);
  refuses("a foreign block is rejected", foreign, 100);
  expect(*engine, block && foreign, "a rejected block stays with its owner");
  publish(*engine, *channel, std::move(block), 1000, limit(), "conformance");
  static_cast<void>(receive(*engine, *channel, 1, 1000));
}

void leases_keep_their_bytes_while_the_sender_continues(const Handle& engine) {
  constexpr std::uint64_t messages = 30;
  const auto channel = engine->open(0, all_ranks(*engine), 1);
  std::vector<Lease> kept;
  for (std::uint64_t i = 0; i < messages; ++i) {
    if (rank_of(*engine) == 0) send(*engine, *channel, i, 70'000);
    kept.push_back(receive(*engine, *channel, i, 70'000));
  }
  for (std::uint64_t i = 0; i < messages; ++i) expect_filled(*engine, kept[i].bytes, i, 70'000);
  meet(*engine);
}

void the_last_copy_of_a_lease_keeps_its_bytes(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 1);
  if (rank_of(*engine) == 0) send(*engine, *channel, 100, 70'000);
  Lease lease = receive(*engine, *channel, 100, 70'000);
  const auto copy = std::exchange(lease.hold, nullptr);
  for (std::uint64_t i = 0; i < 20; ++i) {
    if (rank_of(*engine) == 0) send(*engine, *channel, i, 70'000);
    static_cast<void>(receive(*engine, *channel, i, 70'000));
  }
  expect_filled(*engine, lease.bytes, 100, 70'000);
  meet(*engine);
}

void leases_outlive_channel_and_engine(const Handle& engine) {
  std::vector<Lease> kept;
  {
    const auto group = engine->subgroup(all_ranks(*engine), "short-lived");
    const auto channel = group->open(0, all_ranks(*group), 4);
    for (std::uint64_t i = 0; i < 4; ++i) {
      if (rank_of(*group) == 0) send(*group, *channel, i, 9000);
      kept.push_back(receive(*group, *channel, i, 9000));
    }
  }
  meet(*engine);
  const auto channel = engine->open(0, all_ranks(*engine), 1);
  for (std::uint64_t i = 50; i < 70; ++i) {
    if (rank_of(*engine) == 0) send(*engine, *channel, i, 9000);
    static_cast<void>(receive(*engine, *channel, i, 9000));
  }
  for (std::uint64_t i = 0; i < 4; ++i) expect_filled(*engine, kept[i].bytes, i, 9000);
  meet(*engine);
}

/// Sends `messages` on a channel on which this rank both sends and receives, so that it never waits only for room.
/// Returns the addresses of its blocks.
std::set<std::uintptr_t> multicast_counting_blocks(const Handle& engine, Channel& channel, std::uint64_t messages,
                                                   std::size_t bytes) {
  std::set<std::uintptr_t> addresses;
  std::uint64_t received = 0;
  Channel* const both[] = {&channel};
  const auto receive_some = [&] {
    while (engine->try_receive(channel).message) ++received;
  };
  for (std::uint64_t i = 0; i < messages; ++i) {
    Block block = allocate(*engine, bytes, limit(), "conformance");
    addresses.insert(address_of(block));
    while (!engine->try_publish(channel, block, bytes)) {
      expect(*engine, engine->wait({.receive = both, .publish = both}, limit()) == Woken::ready, "the window advances");
      receive_some();
    }
  }
  receive_some();
  while (received < messages) {
    expect(*engine, engine->wait({.receive = both}, limit()) == Woken::ready, "all messages arrive");
    receive_some();
  }
  return addresses;
}

void memory_stays_bounded_over_thousands_of_messages(const Handle& engine) {
  constexpr std::uint64_t messages = 2000;
  const auto channel = engine->open(0, all_ranks(*engine), 4);
  if (rank_of(*engine) == 0) {
    const auto addresses = multicast_counting_blocks(engine, *channel, messages, 100'000);
    const auto max_blocks =
        2 * (static_cast<std::size_t>(channel->window()) + static_cast<std::size_t>(size_of(*engine)) + 2);
    expect(
        *engine, addresses.size() <= max_blocks,
        fmt::format("{} blocks served {} messages with a window of {}", addresses.size(), messages, channel->window()));
  } else {
    for (std::uint64_t i = 0; i < messages; ++i) {
      expect(*engine, receive(*engine, *channel, limit(), "conformance").has_value(), "all messages arrive");
    }
  }
  meet(*engine);
}

void a_lease_may_end_on_any_thread(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 2);
  for (int round = 0; round < 20; ++round) {
    std::vector<Lease> leases;
    for (std::uint64_t i = 0; i < 2; ++i) {
      if (rank_of(*engine) == 0) send(*engine, *channel, i, 5000);
      leases.push_back(receive(*engine, *channel, i, 5000));
    }
    std::async(std::launch::async, [moved = std::move(leases)]() mutable { moved.clear(); }).get();
  }
  if (rank_of(*engine) == 0) {
    expect_eventually(*engine, "leases that ended on another thread are returned",
                      [&] { return engine->holders(*channel).empty(); });
  }
  meet(*engine);
}

void a_block_may_be_shared_with_another_sender(const Handle& engine) {
  constexpr std::uint64_t bytes = 500'000;
  const auto channel = engine->open(0, all_ranks(*engine), 2);
  if (rank_of(*engine) == 0) {
    for (std::uint64_t i = 0; i < 5; ++i) {
      auto shared = std::make_shared<Block>(filled(*engine, i, bytes));
      Channel* const it[] = {channel.get()};
      while (!engine->try_publish(*channel, Lease{shared->memory().first(bytes), shared})) {
        expect(*engine, engine->wait({.publish = it}, limit()) == Woken::ready, "a window has room in time");
      }
      const std::byte* const at = shared->memory().data();
      const std::weak_ptr<Block> other = shared;
      shared.reset();
      Lease own = receive(*engine, *channel, i, bytes);
      expect(*engine, own.bytes.data() == at, "shared memory is not copied");
      const auto writable = engine->make_private(*channel, own);
      expect(*engine, writable.data() != at, "other owners of the block do not see a receiver's writes");
      own = {};
      expect_eventually(*engine, "a shared block is released", [&] {
        static_cast<void>(engine->memory_in_use());  // collects blocks that have come back
        return other.expired();
      });
    }
  } else {
    for (std::uint64_t i = 0; i < 5; ++i) static_cast<void>(receive(*engine, *channel, i, bytes));
  }
  meet(*engine);
}

void a_shared_block_can_be_published_again(const Handle& engine) {
  constexpr std::uint64_t bytes = 1000;
  const int rank = rank_of(*engine), size = size_of(*engine);
  const auto channel = engine->open(0, all_ranks(*engine), 1);
  std::vector<std::shared_ptr<Channel>> answers;
  for (int from = 1; from < size; ++from) {
    answers.push_back(rank == 0 || rank == from ? engine->open(from, {0}, 1) : nullptr);
  }
  std::shared_ptr<const Block> block;
  if (rank == 0) block = std::make_shared<const Block>(filled(*engine, 7, bytes));
  for (std::uint64_t round = 0; round < 3; ++round) {
    Channel* const it[] = {channel.get()};
    // From here on rank 0 makes no other call that would notice that the block has come back.
    while (block && !engine->try_publish(*channel, Lease{block->memory().first(bytes), block})) {
      expect(*engine, engine->wait({.publish = it}, limit()) == Woken::ready, "a window has room in time");
    }
    static_cast<void>(receive(*engine, *channel, 7, bytes));
    for (int from = 1; from < size; ++from) {
      Channel* const answer = answers[static_cast<std::size_t>(from - 1)].get();
      if (rank == from) send(*engine, *answer, round, 8);
      if (rank == 0) static_cast<void>(receive(*engine, *answer, round, 8));
    }
  }
  meet(*engine);
}

void ranks_that_share_memory_can_view_each_others(const Handle& engine) {
  constexpr std::size_t bytes = 10'000;
  const bool is_shared = size_of(*engine) > 1 && engine->shares_memory();
  const auto channel = engine->open(0, all_ranks(*engine), 1);
  if (rank_of(*engine) == 0) {
    auto kept = std::make_shared<Block>(filled(*engine, 7, bytes));
    const ByteView content = kept->memory().first(bytes);
    const auto position = engine->position_of(content);
    if (is_shared) expect(*engine, position.has_value(), "a block of shared memory has a position");
    expect(*engine, !engine->position_of(Bytes(bytes)), "other memory has no position");
    auto message = std::make_shared<Block>(allocate(*engine, sizeof(std::uint64_t), limit(), "conformance"));
    const ByteView number = message->memory().first(sizeof(std::uint64_t));
    const std::uint64_t sent = position.value_or(0);
    std::memcpy(message->memory().data(), &sent, sizeof(sent));
    const auto both = std::make_shared<std::pair<std::shared_ptr<Block>, std::shared_ptr<Block>>>(message, kept);
    expect(*engine, engine->try_publish(*channel, Lease{number, both}), "there is room for a first message");
  }
  const auto received = levada::receive(*engine, *channel, limit(), "conformance");
  const auto position = ByteReader(received->bytes).get<std::uint64_t>();
  if (is_shared) {
    const auto seen = engine->view(0, position, bytes);
    expect(*engine, seen.has_value(), "another rank's block can be read");
    expect_filled(*engine, *seen, 7, bytes);
    expect(*engine, !engine->view(0, position, SIZE_MAX / 2), "a view larger than the memory is rejected");
    expect(*engine, !engine->view(0, SIZE_MAX, 2), "a view beyond the memory is rejected");
  }
  meet(*engine);
}

/// Returns whether another rank may forward rank 0's messages to this one: a rank on the same host, or on a third host,
/// as in a tree.
bool may_be_forwarded_to(const Engine& engine, int rank) {
  const auto& host_of = engine.info().host_of;
  const int host = host_of[static_cast<std::size_t>(rank)];
  const bool is_alone = std::count(host_of.begin(), host_of.end(), host) == 1;
  const bool has_third_host =
      std::any_of(host_of.begin(), host_of.end(), [&](int each) { return each != host && each != host_of[0]; });
  return host != host_of[0] && (!is_alone || has_third_host);
}

void holders_name_the_ranks_that_keep_messages(const Handle& engine) {
  const int size = size_of(*engine);
  const auto channel = engine->open(0, all_ranks(*engine), 4);
  const auto has = [&](int rank, int not_received, int leased) {
    for (const auto& holder : engine->holders(*channel)) {
      if (holder.rank == rank) return holder.not_received == not_received && holder.leased == leased;
    }
    return not_received == 0 && leased == 0;
  };
  if (rank_of(*engine) == 0) {
    for (std::uint64_t i = 0; i < 3; ++i) send(*engine, *channel, i, 100'000);
    for (int rank = 1; rank < size; ++rank) {
      if (may_be_forwarded_to(*engine, rank)) continue;
      expect_eventually(*engine,
                        "a rank that keeps one of two received messages holds one lease, with one not received",
                        [&] { return has(rank, 1, engine->shares_memory(rank) ? 1 : 0); });
    }
    expect(*engine, has(0, 3, 0), "a receiver holds three messages that it has not received");
    Lease first = receive(*engine, *channel, 0, 100'000);
    expect(*engine, !engine->shares_memory() || has(0, 2, 1), "a lease is held until it ends");
    first = {};
    meet(*engine);
    for (std::uint64_t i = 1; i < 3; ++i) static_cast<void>(receive(*engine, *channel, i, 100'000));
    expect_eventually(*engine, "no rank holds a message in the end", [&] { return engine->holders(*channel).empty(); });
  } else {
    const Lease kept = receive(*engine, *channel, 0, 100'000);
    static_cast<void>(receive(*engine, *channel, 1, 100'000));
    meet(*engine);
    static_cast<void>(receive(*engine, *channel, 2, 100'000));
  }
  meet(*engine);
}

void memory_in_use_is_counted_until_it_is_returned(const Handle& engine) {
  constexpr std::uint64_t bytes = 500'000;
  const auto channel = engine->open(0, all_ranks(*engine), 2);
  meet(*engine);
  if (rank_of(*engine) == 0) {
    expect_eventually(*engine, "no memory is in use at first", [&] { return engine->memory_in_use() < bytes; });
    Block block = filled(*engine, 0, bytes);
    expect(*engine, engine->memory_in_use() >= bytes, "an allocated block is in use");
    publish(*engine, *channel, std::move(block), bytes, limit(), "conformance");
    expect(*engine, engine->memory_in_use() >= bytes, "a message that its sender has not received is in use");
  }
  static_cast<void>(receive(*engine, *channel, 0, bytes));
  expect_eventually(*engine, "memory that all ranks have released is not in use",
                    [&] { return engine->memory_in_use() < bytes; });
  meet(*engine);
}

void memory_returns_to_the_system_and_can_be_allocated_again(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 2);
  meet(*engine);
  for (const std::uint64_t seed : {1, 2}) {
    if (rank_of(*engine) == 0) send(*engine, *channel, seed, 500'000);
    static_cast<void>(receive(*engine, *channel, seed, 500'000));
    meet(*engine);
    if (rank_of(*engine) != 0) continue;
    std::uint64_t bytes = 0;
    expect_eventually(*engine, "returned memory can be released to the system",
                      [&] { return (bytes += engine->trim()) > 0; });
  }
  meet(*engine);
}

constexpr Case memory_list[] = {
    {"blocks are as large as asked for and page aligned", 1, blocks_are_as_large_as_asked_for_and_page_aligned},
    {"blocks are reused", 1, blocks_are_reused},
    {"blocks in use are distinct", 1, blocks_in_use_are_distinct},
    {"a block that can never fit is rejected", 1, a_block_that_can_never_fit_is_rejected},
    {"a wait for a block that can never fit is rejected", 1, a_wait_for_a_block_that_can_never_fit_is_rejected},
    {"blocks may change threads", 1, blocks_may_change_threads},
    {"invalid blocks are rejected", 1, invalid_blocks_are_rejected},
    {"leases keep their bytes while the sender continues", 1, leases_keep_their_bytes_while_the_sender_continues},
    {"the last copy of a lease keeps its bytes", 1, the_last_copy_of_a_lease_keeps_its_bytes},
    {"leases outlive channel and engine", 1, leases_outlive_channel_and_engine},
    {"memory stays bounded over thousands of messages", 1, memory_stays_bounded_over_thousands_of_messages},
    {"a lease may end on any thread", 1, a_lease_may_end_on_any_thread},
    {"a block may be shared with another sender", 1, a_block_may_be_shared_with_another_sender},
    {"a shared block can be published again", 1, a_shared_block_can_be_published_again},
    {"ranks that share memory can view each other's", 1, ranks_that_share_memory_can_view_each_others},
    {"holders name the ranks that keep messages", 1, holders_name_the_ranks_that_keep_messages},
    {"memory in use is counted until it is returned", 1, memory_in_use_is_counted_until_it_is_returned},
    {"memory returns to the system and can be allocated again", 1,
     memory_returns_to_the_system_and_can_be_allocated_again},
};

}  // namespace

std::span<const Case> memory_cases() {
  return memory_list;
}

}  // namespace levada::conformance
