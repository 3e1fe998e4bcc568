// Which ranks have left which groups, as far as one rank knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace levada {

/// A rank that leaves a group counts as having left every group made from it, except those in which it has announced
/// that it stays. The same holds for groups that this rank has not entered yet. A value: not thread-safe. Groups are
/// named by Group::keys.
class Membership {
 public:
  /// `rank` is in the group and stays in it, whatever it leaves that the group was made from.
  void stay(std::uint64_t group, int rank) { groups_[group].staying.push_back(rank); }
  void leave(std::uint64_t group, int rank) { groups_[group].left.push_back(rank); }
  /// This rank has entered the group groups.front(), made from the rest.
  void enter_oneself(std::span<const std::uint64_t> groups);
  /// This rank has left it, which has `num_others` other members; forgets the groups that are over.
  void leave_oneself(std::span<const std::uint64_t> groups, std::size_t num_others);
  /// Forgets a group that all have left, once this rank is in none made from it. To be called after everything that
  /// asks which ranks have left it.
  void forget_if_over(std::uint64_t group);
  /// Whether `rank` has left the group groups.front().
  bool has_left(std::span<const std::uint64_t> groups, int rank) const;
  /// Whether this rank has left `group`, and another has not.
  bool has_left_oneself(std::uint64_t group) const;
  /// How many groups are remembered.
  std::size_t size() const { return groups_.size(); }

 private:
  struct Known {
    std::vector<int> staying;
    std::vector<int> left;
    std::optional<std::size_t> num_others;  ///< once this rank has left, too
    std::size_t num_subgroups = 0;          ///< groups made from it that this rank is in
  };

  std::unordered_map<std::uint64_t, Known> groups_;
};

}  // namespace levada
