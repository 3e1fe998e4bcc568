// A set of numbers held as ranges: which bytes are free, which have been touched.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace levada::shm {

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Ranges that touch become one. A value.
class Ranges {
 public:
  /// Parts of `range` that are in the set already are left as they are.
  void add(Range range);
  void remove(Range range);

  bool contains(Range range) const;
  /// The parts of `range` that are not in the set, in order.
  std::vector<Range> missing(Range range) const;
  /// The parts of `range` that are in the set, in order.
  std::vector<Range> within(Range range) const;
  /// The lowest place where `size` numbers lie in a row.
  std::optional<std::uint64_t> find(std::uint64_t size) const;

  std::vector<Range> all() const;
  std::uint64_t total() const { return total_; }

 private:
  std::map<std::uint64_t, std::uint64_t> end_of_;  ///< by begin
  std::uint64_t total_ = 0;
};

}  // namespace levada::shm
