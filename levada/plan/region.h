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

/// The ranges of one dimension, in the order in which the part holds them; adjacent ones are merged, none is empty.
using Ranges = std::vector<Range>;

/// The segment boundaries in each row of a tensor, as in cu_seqlens: they begin at 0, never decrease, and end at the
/// row's length.
struct Segments {
  std::int64_t rows = 0;
  std::int64_t entries = 0;             ///< per row
  std::vector<std::int64_t> positions;  ///< rows x entries
  bool operator==(const Segments&) const = default;

  std::int64_t at(std::int64_t row, std::int64_t entry) const {
    return positions[static_cast<std::size_t>(row * entries + entry)];
  }
};

/// The product of the ranges of each dimension. A value type; copies share their content, which keeps a plan of many
/// moves small.
class Region {
 public:
  Region() = default;
  /// Covers all of `shape`.
  explicit Region(const Shape& shape);

  /// Returns one entry per dimension; valid until this region changes or is destroyed. If rows differ, dims 0 and 1 are
  /// merged.
  const std::vector<Ranges>& dims() const;
  /// Returns whether rows differ, so that dims()[0] covers dims 0 and 1 of the tensor.
  bool rows_differ() const { return rows_ != 0; }
  /// Returns the extents of the part, with its ranges concatenated.
  Shape shape() const;
  std::size_t element_count() const;
  /// Returns whether this is all of a tensor of that shape, in order.
  bool covers(const Shape& shape) const;

  /// Keeps part `index` of `count` equal parts along `dim`, counted within this region. The caller has checked that
  /// the extent divides.
  void keep_part(std::size_t dim, std::int64_t index, std::int64_t count);
  /// Keeps those of positions [begin, end) along `dim`, counted within this region, that exist.
  void keep_range(std::size_t dim, std::int64_t begin, std::int64_t end);
  /// Keeps chunks `index` and 2*count-1-index of 2*count equal chunks along `dim`.
  void keep_zigzag(std::size_t dim, std::int64_t index, std::int64_t count);

  /// Divides each segment of each row along `dim` into 2*count equal chunks and keeps chunks `index` and
  /// 2*count-1-index, segment after segment. With several rows, `dim` must be 1, and rows differ afterwards, so this
  /// must be the last call. The caller has checked that the segments fit the tensor and divide, and that `dim` is
  /// whole.
  void keep_zigzag_of_segments(std::size_t dim, const Segments& segments, std::int64_t index, std::int64_t count);

  bool operator==(const Region& other) const;
  /// Returns, for example, "[0:8, 0:512 3584:4096]".
  std::string to_string() const;

 private:
  void replace(std::size_t dim, Ranges ranges);

  std::shared_ptr<const std::vector<Ranges>> dims_;  ///< null: no dimensions
  std::int64_t rows_ = 0;                            ///< rows of the part, if they differ; else 0
};

/// Copies the region's elements from `from` to `to` in C order of the part, and counts them as copied payload. Throws
/// InvalidArgument if the region exceeds the tensor, or cuts a tensor whose elements do not begin on byte boundaries.
void copy_region(const TensorView& from, const Region& region, std::byte* to, CopyMode mode = CopyMode::cached);

/// Returns the region as a view of the same memory; nothing if a dimension has more than one range. Throws
/// InvalidArgument if the region exceeds the tensor.
std::optional<TensorView> view_region(const TensorView& from, const Region& region);

}  // namespace levada
