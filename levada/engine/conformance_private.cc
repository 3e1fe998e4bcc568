
#include "levada/engine/conformance_kit.h"

namespace levada::conformance {
namespace {

constexpr std::size_t message_bytes = 600'001;

/// Writes this rank's number to every 50th page of a message that filled() made.
void scribble(std::span<std::byte> bytes, int rank) {
  for (std::size_t at = 0; at < bytes.size(); at += std::size_t{50} * 4096) bytes[at] = static_cast<std::byte>(rank);
}

bool is_scribbled(ByteView bytes, int rank) {
  for (std::size_t at = 0; at < bytes.size(); at += std::size_t{50} * 4096) {
    if (bytes[at] != static_cast<std::byte>(rank)) return false;
  }
  return true;
}

void writes_to_a_private_lease_are_visible_only_through_it(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 4);
  for (std::uint64_t round = 0; round < 12; ++round) {
    for (std::uint64_t i = 0; rank_of(*engine) == 0 && i < 2; ++i) {
      send(*engine, *channel, 2 * round + i, message_bytes);
    }
    Lease written = receive(*engine, *channel, 2 * round, message_bytes);
    const auto bytes = engine->make_private(*channel, written);
    expect(*engine, bytes.empty() || (bytes.data() == written.bytes.data() && bytes.size() == written.bytes.size()),
           "make_private() returns the bytes of the lease");
    expect_filled(*engine, written.bytes, 2 * round, message_bytes);
    if (!bytes.empty()) scribble(bytes, rank_of(*engine));
    const Lease other = receive(*engine, *channel, 2 * round + 1, message_bytes);
    meet(*engine);
    expect_filled(*engine, other.bytes, 2 * round + 1, message_bytes);
    if (bytes.empty()) expect_filled(*engine, written.bytes, 2 * round, message_bytes);
    else expect(*engine, is_scribbled(written.bytes, rank_of(*engine)), "a rank reads its own writes");
    meet(*engine);
  }
}

void a_lease_of_this_ranks_own_memory_may_be_private(const Handle& engine) {
  const auto own = engine->open(rank_of(*engine), {rank_of(*engine)}, 2);
  for (std::uint64_t round = 0; round < 8; ++round) {
    send(*engine, *own, round, message_bytes);
    Lease lease = receive(*engine, *own, round, message_bytes);
    scribble(engine->make_private(*own, lease), 7);
  }
}

void a_copied_hold_keeps_a_private_lease(const Handle& engine) {
  const auto channel = engine->open(0, all_ranks(*engine), 2);
  if (rank_of(*engine) == 0) send(*engine, *channel, 1, message_bytes);
  Lease lease = receive(*engine, *channel, 1, message_bytes);
  const auto bytes = engine->make_private(*channel, lease);
  if (!bytes.empty()) scribble(bytes, rank_of(*engine));
  const auto hold = std::exchange(lease.hold, nullptr);
  for (std::uint64_t i = 2; i < 10; ++i) {
    if (rank_of(*engine) == 0) send(*engine, *channel, i, message_bytes);
    Lease next = receive(*engine, *channel, i, message_bytes);
    const auto written = engine->make_private(*channel, next);
    if (!written.empty()) scribble(written, 100);
  }
  if (!bytes.empty()) expect(*engine, is_scribbled(lease.bytes, rank_of(*engine)), "a held lease keeps its writes");
  meet(*engine);
}

constexpr Case private_list[] = {
    {"writes to a private lease are visible only through it", 1, writes_to_a_private_lease_are_visible_only_through_it},
    {"a lease of this rank's own memory may be private", 1, a_lease_of_this_ranks_own_memory_may_be_private},
    {"a copied hold keeps a private lease", 1, a_copied_hold_keeps_a_private_lease},
};

}  // namespace

std::span<const Case> private_cases() {
  return private_list;
}

}  // namespace levada::conformance
