// Keys that the members of a group derive without communicating, and argument checks that all engines share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>

#include "levada/engine/intervals.h"

namespace levada {

class Block;
class Channel;
struct Lease;

/// Returns the position of `rank` in `ranks`, which is its number in a group of those ranks, or -1 if it is not among
/// them.
int rank_in(std::span<const int> ranks, int rank);

/// Throws InvalidArgument, naming `what`, if `ranks` is empty, contains a rank twice, or contains one that is out of
/// range for a group of `size`.
void check_ranks(std::span<const int> ranks, int size, std::string_view what);
/// Throws InvalidArgument for a channel that `rank` cannot open in a group of `size`, as Engine::open() does.
void check_channel(int rank, int size, int from, std::span<const int> to, int window);
/// Returns the rank that `rank` has in the subgroup. Throws InvalidArgument if it cannot enter the subgroup, as
/// Engine::subgroup() does.
int check_subgroup(int rank, int size, std::span<const int> ranks);
/// Throws InvalidArgument for a message that try_publish() rejects: no bytes, or more than the block has.
void check_message(const Block& block, std::size_t bytes);
void check_message(const Lease& lease);
/// Throw InvalidArgument because `rank` is not the sender, or not a receiver, of the channel.
[[noreturn]] void throw_not_sender(int rank, const Channel& channel);
[[noreturn]] void throw_not_receiver(int rank, const Channel& channel);
/// Throws InvalidArgument for a channel that another engine opened.
[[noreturn]] void throw_foreign_channel(int rank);

/// Returns a number that identifies channels with this sender, these receivers (in any order) and this tag. It is the
/// same on all members.
std::uint64_t channel_kind(int from, std::span<const int> to, std::uint64_t tag);

/// Derives the keys of a group's channels and subgroups. The n-th channel or subgroup of a kind gets the same key on
/// all members. Thread-safe.
///
/// Keys are never reused, because members may still send messages with old ones, so the counts are kept as long as the
/// group. A long job makes subgroups with numbered names, such as "reduce-scatter 17". Consecutive numbers are stored
/// as one interval and take no more memory than one name.
class KeyDeriver {
 public:
  explicit KeyDeriver(std::uint64_t group) : group_(group) {}

  /// Returns the key of the next channel from `from` to these receivers, in any order, with this tag.
  std::uint64_t channel(int from, std::span<const int> to, std::uint64_t tag = 0);
  /// Returns the key of the next subgroup of these ranks with this name.
  std::uint64_t subgroup(std::span<const int> ranks, std::string_view name);

  /// Returns the number of intervals and counts that are kept.
  std::size_t num_kept() const;

 private:
  /// The counts of kinds that differ only in the last number of their names.
  struct KindCounts {
    IntervalSet numbers;
    std::unordered_map<std::uint64_t, std::uint64_t> num_more;  ///< by number: count beyond the first
  };

  /// Counts one more channel or subgroup with this number, and returns how many there were before. Requires mutex_.
  std::uint64_t count(std::uint64_t kinds, std::uint64_t number);
  std::uint64_t next(int from, std::span<const int> ranks, std::string_view name, std::uint64_t tag);

  std::uint64_t group_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, KindCounts>
      counts_;  ///< by a hash of sender, receivers, tag and name without its number
};

}  // namespace levada
