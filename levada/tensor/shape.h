// The extents of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

namespace levada {

/// Up to max_rank extents (or strides), stored inline. A value.
class Shape {
 public:
  static constexpr std::size_t max_rank = 16;

  Shape() = default;
  /// Throws InvalidArgument beyond max_rank.
  Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents);

  std::size_t rank() const { return rank_; }
  std::int64_t operator[](std::size_t dim) const { return extents_[dim]; }
  std::int64_t& operator[](std::size_t dim) { return extents_[dim]; }
  const std::int64_t* begin() const { return extents_.data(); }
  const std::int64_t* end() const { return extents_.data() + rank_; }
  void push_back(std::int64_t extent);

  /// Returns the product of the extents, which is 1 for rank 0, or nothing if an extent is negative or the product
  /// overflows.
  std::optional<std::size_t> element_count() const;
  /// Returns the strides, in elements, of a C-contiguous tensor of this shape.
  Shape contiguous_strides() const;
  bool operator==(const Shape& other) const;
  /// Returns text such as "[8, 4096]".
  std::string to_string() const;

 private:
  std::array<std::int64_t, max_rank> extents_{};
  std::size_t rank_ = 0;
};

}  // namespace levada
