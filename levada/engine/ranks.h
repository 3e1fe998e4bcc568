// What the members of a group work out alike, without a word to each other.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace levada {

/// Throws InvalidArgument, naming `what`, for no ranks, one that a group of `size` does not have, or one named twice.
void check_ranks(std::span<const int> ranks, int size, std::string_view what);
/// Throws InvalidArgument for a channel that `rank` cannot open in a group of `size`, as Engine::open() does.
void check_channel(int rank, int size, int from, std::span<const int> to, int window);
/// Throws InvalidArgument for a subgroup that `rank` cannot enter, as Engine::subgroup() does; gives its rank there.
int check_subgroup(int rank, int size, std::span<const int> ranks);

/// Numbers for a group's channels and subgroups: of the n-th of its kind that a member makes, the same on all members.
/// Any thread.
class Naming {
 public:
  explicit Naming(std::uint64_t group) : group_(group) {}

  /// Of the next channel from `from` to these takers, in whatever order they are named.
  std::uint64_t channel(int from, std::span<const int> to);
  /// Of the next subgroup of these ranks with this name.
  std::uint64_t subgroup(std::span<const int> ranks, std::string_view name);

 private:
  std::uint64_t next(int from, std::vector<int> ranks, std::string_view name);

  std::uint64_t group_;
  std::mutex mutex_;
  std::map<std::tuple<int, std::vector<int>, std::string>, int> made_;
};

}  // namespace levada
