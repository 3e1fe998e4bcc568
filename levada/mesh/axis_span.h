// Represents axes of a mesh as arithmetic on rank numbers.
#pragma once

#include <vector>

namespace levada {

/// Maps ranks to coordinates along one axis or several combined axes, the first of which varies slowest. A value type.
/// Two spans are equal if they number the ranks in the same way.
class AxisSpan {
 public:
  /// Spans no axes: the only coordinate is 0.
  AxisSpan() = default;
  /// Spans one axis.
  AxisSpan(int stride, int size) { append(stride, size); }

  /// Adds an axis that varies faster than the previous ones.
  void append(int stride, int size) {
    if (size == 1) return;
    size_ *= size;
    if (!parts_.empty() && parts_.back().stride == stride * size) {
      parts_.back() = {stride, parts_.back().size * size};
    } else {
      parts_.push_back({stride, size});
    }
  }

  /// Returns the number of coordinates.
  int size() const { return size_; }
  /// Returns the coordinate of `rank`.
  int of(int rank) const {
    int coordinate = 0;
    for (const Part& part : parts_) coordinate = coordinate * part.size + rank / part.stride % part.size;
    return coordinate;
  }
  /// Returns the lowest rank with `coordinate`.
  int first_rank(int coordinate) const {
    int rank = 0;
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      rank += coordinate % part->size * part->stride;
      coordinate /= part->size;
    }
    return rank;
  }
  bool operator==(const AxisSpan&) const = default;

 private:
  struct Part {
    int stride = 1;
    int size = 1;
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts_;
  int size_ = 1;
};

}  // namespace levada
