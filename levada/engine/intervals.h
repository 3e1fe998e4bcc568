// A set of numbers stored as intervals, such as the bytes that are free or resident.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace levada {

/// Half-open: `end` is excluded.
struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

/// A set of numbers. Adjacent intervals are merged. A value.
class IntervalSet {
 public:
  /// Adds `interval`, parts of which may already be in the set.
  void add(Interval interval);
  void remove(Interval interval);

  bool contains(Interval interval) const;
  /// Returns the parts of `interval` that are not in the set, in ascending order.
  std::vector<Interval> missing(Interval interval) const;
  /// Returns the parts of `interval` that are in the set, in ascending order.
  std::vector<Interval> within(Interval interval) const;
  /// Returns the lowest number that begins `size` consecutive numbers of the set, if there is one.
  std::optional<std::uint64_t> find(std::uint64_t size) const;

  std::vector<Interval> all() const;
  /// Returns the number of numbers in the set.
  std::uint64_t total() const { return total_; }

 private:
  std::map<std::uint64_t, std::uint64_t> end_of_;  ///< end of each interval, by begin
  std::uint64_t total_ = 0;
};

/// Returns the sum of their sizes.
std::uint64_t total_size(const std::vector<Interval>& intervals);

}  // namespace levada
