#include "levada/engine/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/engine/engine.h"

namespace levada {
namespace {

struct NumberedName {
  std::string rest;  ///< the name without the number
  std::size_t place = std::string::npos;
  std::uint64_t number = 0;
};

/// Splits off the last number, unless it is too large or has a leading zero: "step 07" is not another "step 7".
NumberedName split_number(std::string_view name) {
  constexpr std::string_view digits = "0123456789";
  constexpr std::size_t max_digits = 18;
  NumberedName split{.rest = std::string(name)};
  const std::size_t last = name.find_last_of(digits);
  if (last == name.npos) return split;
  const std::size_t before = name.find_last_not_of(digits, last);
  const std::size_t first = before == name.npos ? 0 : before + 1, size = last + 1 - first;
  if (size > max_digits || (size > 1 && name[first] == '0')) return split;
  std::from_chars(name.data() + first, name.data() + last + 1, split.number);
  split.rest.erase(first, size);
  split.place = first;
  return split;
}

std::vector<int> sorted(std::span<const int> ranks) {
  std::vector<int> copy(ranks.begin(), ranks.end());
  std::sort(copy.begin(), copy.end());
  return copy;
}

/// Writes a description of channels or subgroups of one kind.
ByteWriter kind_of(std::uint64_t group, int from, std::span<const int> ranks, std::string_view name,
                   std::uint64_t tag) {
  ByteWriter kind;
  kind.put(group);
  kind.put(from);
  kind.put(static_cast<std::uint32_t>(ranks.size()));
  for (const int rank : ranks) kind.put(rank);
  kind.put_sized(name);
  kind.put(tag);
  return kind;
}

}  // namespace

int rank_in(std::span<const int> ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

void check_ranks(std::span<const int> ranks, int size, std::string_view what) {
  if (ranks.empty()) throw InvalidArgument(fmt::format("{} needs at least one rank", what));
  const std::vector<int> ascending = sorted(ranks);
  if (ascending.front() < 0 || ascending.back() >= size) {
    throw InvalidArgument(
        fmt::format("{} of ranks {}: this engine has ranks 0 to {}", what, fmt::join(ranks, ", "), size - 1));
  }
  if (const auto twice = std::ranges::adjacent_find(ascending); twice != ascending.end()) {
    throw InvalidArgument(fmt::format("{} of ranks {}: rank {} appears twice", what, fmt::join(ranks, ", "), *twice));
  }
}

void check_channel(int rank, int size, int from, std::span<const int> to, int window) {
  check_ranks(to, size, "the receivers");
  check_ranks(std::span(&from, 1), size, "the sender");
  if (rank != from && rank_in(to, rank) < 0) {
    throw InvalidArgument(
        fmt::format("rank {} cannot open the channel from rank {} to ranks {}: it is neither the sender nor a receiver",
                    rank, from, fmt::join(to, ", ")));
  }
  if (window < 1) throw InvalidArgument(fmt::format("window must be at least 1, got {}", window));
}

int check_subgroup(int rank, int size, std::span<const int> ranks) {
  check_ranks(ranks, size, "a subgroup");
  const int mine = rank_in(ranks, rank);
  if (mine >= 0) return mine;
  throw InvalidArgument(
      fmt::format("rank {} cannot create a subgroup of ranks {}: it is not one of them", rank, fmt::join(ranks, ", ")));
}

void throw_not_sender(int rank, const Channel& channel) {
  throw InvalidArgument(fmt::format("rank {} is not the sender of the channel from rank {}", rank, channel.from()));
}

void throw_not_receiver(int rank, const Channel& channel) {
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

void throw_foreign_channel(int rank) {
  throw InvalidArgument(fmt::format(
      "rank {} uses a channel that another engine opened; pass it to the engine whose open() returned it", rank));
}

std::uint64_t channel_kind(int from, std::span<const int> to, std::uint64_t tag) {
  return hash64(kind_of(0, from, sorted(to), "", tag).view());
}

std::uint64_t KeyDeriver::channel(int from, std::span<const int> to, std::uint64_t tag) {
  return next(from, sorted(to), "", tag);
}

std::uint64_t KeyDeriver::subgroup(std::span<const int> ranks, std::string_view name) {
  return next(-1, ranks, name, 0);
}

std::uint64_t KeyDeriver::next(int from, std::span<const int> ranks, std::string_view name, std::uint64_t tag) {
  const NumberedName split = split_number(name);
  ByteWriter kinds = kind_of(group_, from, ranks, split.rest, tag);
  kinds.put(static_cast<std::uint64_t>(split.place));
  ByteWriter identity = kind_of(group_, from, ranks, name, tag);
  const std::lock_guard lock(mutex_);
  identity.put(static_cast<int>(count(hash64(kinds.view()), split.number)));
  return hash64(identity.view());
}

std::uint64_t KeyDeriver::count(std::uint64_t kinds, std::uint64_t number) {
  KindCounts& counts = counts_[kinds];
  const Interval one{number, number + 1};
  if (counts.numbers.contains(one)) return ++counts.num_more[number];
  counts.numbers.add(one);
  return 0;
}

std::size_t KeyDeriver::num_kept() const {
  const std::lock_guard lock(mutex_);
  std::size_t kept = 0;
  for (const auto& [kinds, counts] : counts_) kept += counts.numbers.all().size() + counts.num_more.size();
  return kept;
}

}  // namespace levada
