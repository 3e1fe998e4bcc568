// Who is in which group, as one rank has heard it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace levada {

/// Who has entered and left which groups; of a group that this rank has not entered yet, too. State alone, without
/// locks.
class Attendance {
 public:
  void enter(std::uint64_t group, int rank) { groups_[group].entered.push_back(rank); }
  void leave(std::uint64_t group, int rank) { groups_[group].left.push_back(rank); }
  /// This rank has entered the group groups.front(), made from the rest.
  void enter_oneself(std::span<const std::uint64_t> groups);
  /// This rank has left it, with so many others; forgets those of them that are over.
  void leave_oneself(std::span<const std::uint64_t> groups, std::size_t others);
  /// Forgets a group that all have left, once this rank is in none made from it. To be called after everything that
  /// asks who has left it.
  void forget_if_over(std::uint64_t group);
  /// Whether `rank` has left the group groups.front(), or one of those that it was made from without having entered it.
  bool has_left(std::span<const std::uint64_t> groups, int rank) const;
  /// How many groups are remembered.
  std::size_t size() const { return groups_.size(); }

 private:
  struct Heard {
    std::vector<int> entered;
    std::vector<int> left;
    std::optional<std::size_t> others;  ///< once this rank has left, too
    std::size_t parts = 0;              ///< groups made from it that this rank is in
  };

  std::unordered_map<std::uint64_t, Heard> groups_;
};

}  // namespace levada
