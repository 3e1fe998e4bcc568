#include "levada/engine/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/engine/engine.h"

namespace levada {

int rank_in(std::span<const int> ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

void check_ranks(std::span<const int> ranks, int size, std::string_view what) {
  if (ranks.empty()) throw InvalidArgument(fmt::format("{} needs at least one rank", what));
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || sorted.back() >= size) {
    throw InvalidArgument(
        fmt::format("{} of ranks {}: this engine has ranks 0 to {}", what, fmt::join(ranks, ", "), size - 1));
  }
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    throw InvalidArgument(
        fmt::format("{} of ranks {}: rank {} stands there twice", what, fmt::join(ranks, ", "), *twice));
  }
}

void check_channel(int rank, int size, int from, std::span<const int> to, int window) {
  check_ranks(to, size, "the receivers");
  check_ranks(std::span(&from, 1), size, "the sender");
  if (rank != from && rank_in(to, rank) < 0) {
    throw InvalidArgument(
        fmt::format("rank {} cannot open a channel from rank {} to ranks {}, to which it does not belong", rank, from,
                    fmt::join(to, ", ")));
  }
  if (window < 1) throw InvalidArgument(fmt::format("a window of {} lets no message through; give at least 1", window));
}

int check_subgroup(int rank, int size, std::span<const int> ranks) {
  check_ranks(ranks, size, "a subgroup");
  const int mine = rank_in(ranks, rank);
  if (mine >= 0) return mine;
  throw InvalidArgument(fmt::format("rank {} cannot make a subgroup of ranks {}, to which it does not belong", rank,
                                    fmt::join(ranks, ", ")));
}

void refuse_sender(int rank, const Channel& channel) {
  throw InvalidArgument(fmt::format("rank {} is not the sender of the channel from rank {}", rank, channel.from()));
}

void refuse_receiver(int rank, const Channel& channel) {
  throw InvalidArgument(fmt::format("rank {} is not a receiver of the channel from rank {} to ranks {}", rank,
                                    channel.from(), fmt::join(channel.to(), ", ")));
}

void check_message(const Block& block, std::size_t bytes) {
  if (bytes != 0 && bytes <= block.memory().size()) return;
  throw InvalidArgument(
      fmt::format("a message of {} bytes cannot be published from a block of {} bytes", bytes, block.memory().size()));
}

void check_message(const Lease& lease) {
  if (lease.bytes.empty()) throw InvalidArgument("a lease of 0 bytes cannot be published");
}

void refuse_channel(int rank) {
  throw InvalidArgument(fmt::format(
      "rank {} uses a channel that another engine opened; pass it to the engine whose open() gave it", rank));
}

std::uint64_t KeyDeriver::channel(int from, std::span<const int> to, std::uint64_t tag) {
  std::vector<int> receivers(to.begin(), to.end());
  std::sort(receivers.begin(), receivers.end());
  return next(from, receivers, "", tag);
}

std::uint64_t KeyDeriver::subgroup(std::span<const int> ranks, std::string_view name) {
  return next(-1, ranks, name, 0);
}

std::uint64_t KeyDeriver::next(int from, std::span<const int> ranks, std::string_view name, std::uint64_t tag) {
  ByteWriter identity;
  identity.put(group_);
  identity.put(from);
  identity.put(static_cast<std::uint32_t>(ranks.size()));
  for (const int rank : ranks) identity.put(rank);
  identity.put_sized(name);
  identity.put(tag);
  const std::lock_guard lock(mutex_);
  identity.put(num_made_[hash64(identity.view())]++);
  return hash64(identity.view());
}

}  // namespace levada
