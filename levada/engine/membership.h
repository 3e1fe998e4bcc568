// Tracks which ranks have left which groups, as far as one rank knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace levada {

/// A rank that leaves a group also leaves every group made from it, except those in which it has announced that it
/// stays, and including those that this rank has not entered yet. A value; not thread-safe. Groups are identified by
/// Group::keys.
class Membership {
 public:
  /// Records that `rank` is in the group and stays in it, even if it leaves groups that this one was made from.
  void stay(std::uint64_t group, int rank) { groups_[group].staying.push_back(rank); }
  void leave(std::uint64_t group, int rank) { groups_[group].left.push_back(rank); }
  /// Records that this rank has entered groups.front(), which was made from the others.
  void enter_oneself(std::span<const std::uint64_t> groups);
  /// Records that this rank has left groups.front(), which has `num_others` other members. Forgets groups that are
  /// over.
  void leave_oneself(std::span<const std::uint64_t> groups, std::size_t num_others);
  /// Forgets the group if all ranks have left it and this rank is in no group made from it. Call it last, after all
  /// queries about which ranks have left the group.
  void forget_if_over(std::uint64_t group);
  /// Returns whether `rank` has left groups.front().
  bool has_left(std::span<const std::uint64_t> groups, int rank) const;
  /// Returns whether this rank has left `group` and another rank has not.
  bool has_left_oneself(std::uint64_t group) const;
  /// Returns the number of groups that are remembered.
  std::size_t size() const { return groups_.size(); }

 private:
  struct GroupState {
    std::vector<int> staying;
    std::vector<int> left;
    std::optional<std::size_t> num_others;  ///< set once this rank has also left
    std::size_t num_subgroups = 0;          ///< number of groups made from it that this rank is in
  };

  std::unordered_map<std::uint64_t, GroupState> groups_;
};

}  // namespace levada
