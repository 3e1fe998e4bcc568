// A part of a tensor: along each dimension a list of ranges, taken in order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/copy.h"
#include "levada/tensor/tensor.h"

namespace levada {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
  auto operator<=>(const Range&) const = default;
};

/// Ranges of one dimension, in the order in which they lie in the part; neighbors merged, none empty.
using Ranges = std::vector<Range>;

/// Where the segments of each row of a tensor begin, as cu_seqlens has them: from 0, never falling, the last one at the
/// row's end.
struct Segments {
  std::int64_t rows = 0;
  std::int64_t entries = 0;             ///< a row
  std::vector<std::int64_t> positions;  ///< rows x entries
  bool operator==(const Segments&) const = default;

  std::int64_t at(std::int64_t row, std::int64_t entry) const {
    return positions[static_cast<std::size_t>(row * entries + entry)];
  }
};

/// The product of its dimensions' ranges. A value; copies share what they hold, so that a plan of many moves is small.
class Region {
 public:
  Region() = default;
  /// All of `shape`.
  explicit Region(const Shape& shape);

  /// One entry a dimension; valid until this region changes or goes. Dims 0 and 1 are one where rows differ.
  const std::vector<Ranges>& dims() const;
  /// Whether rows differ: dims 0 and 1 of the tensor then count as one, dims()[0].
  bool rows_differ() const { return rows_ != 0; }
  /// Extents of the part, once its ranges are laid side by side.
  Shape shape() const;
  std::size_t element_count() const;
  /// Whether this is all of a tensor of that shape, in order.
  bool covers(const Shape& shape) const;

  /// Keeps part `index` of `count` equal parts along `dim`, counted within this region. The caller has checked that
  /// the extent divides.
  void keep_part(std::size_t dim, std::int64_t index, std::int64_t count);
  /// Keeps positions [begin, end) along `dim`, counted within this region, as far as there are any.
  void keep_range(std::size_t dim, std::int64_t begin, std::int64_t end);
  /// Keeps chunks `index` and 2*count-1-index of 2*count equal ones along `dim`.
  void keep_zigzag(std::size_t dim, std::int64_t index, std::int64_t count);

  /// Keeps, of each row along `dim`, chunks `index` and 2*count-1-index of 2*count equal ones of every segment, segment
  /// after segment. Of several rows `dim` is 1, and rows differ from then on: to be called last. The caller has checked
  /// that segments fit the tensor and divide, and that `dim` is whole.
  void keep_zigzag_of_segments(std::size_t dim, const Segments& segments, std::int64_t index, std::int64_t count);

  bool operator==(const Region& other) const;
  /// "[0:8, 0:512 3584:4096]".
  std::string to_string() const;

 private:
  void replace(std::size_t dim, Ranges ranges);

  std::shared_ptr<const std::vector<Ranges>> dims_;  ///< none: no dimensions
  std::int64_t rows_ = 0;                            ///< of the part, where they differ
};

/// Copies the region's elements of `from` to `to` in C order of the part; counted as payload copied. Throws
/// InvalidArgument where the region does not lie in the tensor, or cuts one whose elements do not begin on bytes.
void copy_region(const TensorView& from, const Region& region, std::byte* to, CopyMode mode = CopyMode::cached);

/// The region as a view of the same memory where one view can show it (one range a dimension); empty elsewhere.
/// Throws InvalidArgument where the region does not lie in the tensor.
std::optional<TensorView> view_region(const TensorView& from, const Region& region);

}  // namespace levada
