// Axes of a mesh as arithmetic on rank numbers.
#pragma once

#include <vector>

namespace levada {

/// Where one axis, or several taken together, lie in a rank's number: of several the first varies slowest. A value;
/// equal for two lists of axes that number the ranks alike.
class AxisSpan {
 public:
  /// No axes: one coordinate, 0.
  AxisSpan() = default;
  /// One axis.
  AxisSpan(int stride, int size) { append(stride, size); }

  /// Adds an axis that varies faster than those before.
  void append(int stride, int size) {
    if (size == 1) return;
    size_ *= size;
    if (!parts_.empty() && parts_.back().stride == stride * size) {
      parts_.back() = {stride, parts_.back().size * size};
    } else {
      parts_.push_back({stride, size});
    }
  }

  /// Number of coordinates.
  int size() const { return size_; }
  /// The coordinate of a rank.
  int of(int rank) const {
    int coordinate = 0;
    for (const Part& part : parts_) coordinate = coordinate * part.size + rank / part.stride % part.size;
    return coordinate;
  }
  /// The first rank with a coordinate.
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
