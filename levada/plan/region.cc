#include "levada/plan/region.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

std::int64_t size_of(const Ranges& ranges) {
  std::int64_t size = 0;
  for (const Range& range : ranges) size += range.size();
  return size;
}

void append(Ranges& ranges, Range next) {
  if (next.size() == 0) return;
  if (!ranges.empty() && ranges.back().end == next.begin) ranges.back().end = next.end;
  else ranges.push_back(next);
}

/// Appends positions [begin, end) of the selection `from`.
void append_positions(Ranges& to, const Ranges& from, std::int64_t begin, std::int64_t end) {
  std::int64_t at = 0;
  for (const Range& range : from) {
    const std::int64_t first = std::max(begin, at), last = std::min(end, at + range.size());
    if (first < last) append(to, {range.begin + first - at, range.begin + last - at});
    at += range.size();
  }
}

void check_fits(const TensorView& tensor, const Region& region) {
  bool fits = region.dims().size() == tensor.shape().rank();
  for (std::size_t dim = 0; fits && dim < region.dims().size(); ++dim) {
    for (const Range& range : region.dims()[dim]) {
      fits = fits && range.begin >= 0 && range.begin <= range.end && range.end <= tensor.shape()[dim];
    }
  }
  if (!fits) {
    throw InvalidArgument(
        fmt::format("region {} does not lie in a tensor of shape {}", region.to_string(), tensor.shape().to_string()));
  }
}

/// A strided copy as nested loops over ranges of indices around contiguous runs of bytes.
class RegionCopy {
 public:
  RegionCopy(const TensorView& from, const Region& region, CopyMode mode) : from_(from), region_(region), mode_(mode) {
    item_ = from.dtype().bytes(1);
    run_dim_ = from.shape().rank();
    std::int64_t dense = 1;
    while (run_dim_ > 0) {
      const std::size_t dim = run_dim_ - 1;
      const std::int64_t extent = from.shape()[dim];
      if (extent != 1 && from.strides()[dim] != dense) break;
      inner_ = static_cast<std::size_t>(dense) * item_;
      run_dim_ = dim;
      const Ranges& ranges = region.dims()[dim];
      if (ranges.size() != 1 || ranges.front().size() != extent) break;
      dense *= extent;
    }
  }

  void to(std::byte* to) {
    to_ = to;
    copy(0, from_.data());
  }

 private:
  void copy(std::size_t dim, const std::byte* base) {
    if (dim == from_.shape().rank()) return put(base, item_);
    const std::ptrdiff_t stride = from_.strides()[dim] * static_cast<std::ptrdiff_t>(item_);
    for (const Range& range : region_.dims()[dim]) {
      if (dim == run_dim_) {
        put(base + range.begin * static_cast<std::ptrdiff_t>(inner_), static_cast<std::size_t>(range.size()) * inner_);
        continue;
      }
      for (std::int64_t i = range.begin; i < range.end; ++i) copy(dim + 1, base + i * stride);
    }
  }

  void put(const std::byte* from, std::size_t bytes) {
    copy_payload(to_, from, bytes, mode_);
    to_ += bytes;
  }

  const TensorView& from_;
  const Region& region_;
  const CopyMode mode_;
  std::byte* to_ = nullptr;
  std::size_t item_ = 0;
  std::size_t run_dim_ = 0;  ///< the dimension whose ranges are runs; the rank if single elements are
  std::size_t inner_ = 0;    ///< bytes between neighbors along run_dim_
};

}  // namespace

Region::Region(const Shape& shape) {
  auto dims = std::make_shared<std::vector<Ranges>>();
  dims->reserve(shape.rank());
  for (const std::int64_t extent : shape) {
    dims->push_back(extent == 0 ? Ranges{} : Ranges{{0, extent}});
  }
  dims_ = std::move(dims);
}

const std::vector<Ranges>& Region::dims() const {
  static const std::vector<Ranges> none;
  return dims_ ? *dims_ : none;
}

Shape Region::shape() const {
  Shape shape;
  for (const Ranges& ranges : dims()) shape.push_back(size_of(ranges));
  if (!rows_differ()) return shape;
  Shape of_rows = {rows_, shape[0] / rows_};
  for (std::size_t dim = 1; dim < shape.rank(); ++dim) of_rows.push_back(shape[dim]);
  return of_rows;
}

std::size_t Region::element_count() const {
  std::size_t count = 1;
  for (const Ranges& ranges : dims()) count *= static_cast<std::size_t>(size_of(ranges));
  return count;
}

bool Region::covers(const Shape& shape) const {
  return *this == Region(shape);
}

void Region::replace(std::size_t dim, Ranges ranges) {
  auto changed = std::make_shared<std::vector<Ranges>>(*dims_);
  (*changed)[dim] = std::move(ranges);
  dims_ = std::move(changed);
}

void Region::keep_part(std::size_t dim, std::int64_t index, std::int64_t count) {
  const std::int64_t part = size_of(dims()[dim]) / count;
  keep_range(dim, index * part, (index + 1) * part);
}

void Region::keep_range(std::size_t dim, std::int64_t begin, std::int64_t end) {
  Ranges kept;
  append_positions(kept, dims()[dim], begin, end);
  replace(dim, std::move(kept));
}

void Region::keep_zigzag(std::size_t dim, std::int64_t index, std::int64_t count) {
  const Ranges& whole = dims()[dim];
  const std::int64_t chunk = size_of(whole) / (2 * count);
  const std::int64_t mirrored = 2 * count - 1 - index;
  Ranges kept;
  append_positions(kept, whole, index * chunk, (index + 1) * chunk);
  append_positions(kept, whole, mirrored * chunk, (mirrored + 1) * chunk);
  replace(dim, std::move(kept));
}

void Region::keep_zigzag_of_segments(std::size_t dim, const Segments& segments, std::int64_t index,
                                     std::int64_t count) {
  const std::int64_t length = size_of(dims()[dim]), mirrored = 2 * count - 1 - index;
  Ranges kept;
  const auto keep_row = [&](std::int64_t row, std::int64_t first) {
    for (std::int64_t entry = 0; entry + 1 < segments.entries; ++entry) {
      const std::int64_t begin = first + segments.at(row, entry);
      const std::int64_t chunk = (segments.at(row, entry + 1) - segments.at(row, entry)) / (2 * count);
      append(kept, {begin + index * chunk, begin + (index + 1) * chunk});
      append(kept, {begin + mirrored * chunk, begin + (mirrored + 1) * chunk});
    }
  };
  if (segments.rows == 1) {
    keep_row(0, 0);
    return replace(dim, std::move(kept));
  }
  std::int64_t rows = 0;
  for (const Range& range : dims()[0]) {
    for (std::int64_t row = range.begin; row < range.end; ++row, ++rows) keep_row(row, row * length);
  }
  if (rows == 0) return replace(1, {{0, length / count}});  // no elements, but the same extent as on other ranks
  rows_ = rows;
  std::vector<Ranges> merged(dims().begin() + 1, dims().end());
  merged[0] = std::move(kept);
  dims_ = std::make_shared<const std::vector<Ranges>>(std::move(merged));
}

bool Region::operator==(const Region& other) const {
  if (rows_ != other.rows_) return false;
  return dims_ == other.dims_ || dims() == other.dims();
}

std::string Region::to_string() const {
  std::string text = "[";
  for (std::size_t dim = 0; dim < dims().size(); ++dim) {
    if (dim > 0) text += ", ";
    const Ranges& ranges = dims()[dim];
    if (ranges.empty()) text += "0:0";
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      text += fmt::format("{}{}:{}", i > 0 ? " " : "", ranges[i].begin, ranges[i].end);
    }
  }
  return text + "]";
}

namespace {

void copy_product(const TensorView& from, const Region& region, std::byte* to, CopyMode mode) {
  check_fits(from, region);
  if (!from.dtype().is_byte_sized()) {
    throw InvalidArgument(fmt::format("a tensor of {} cannot be cut: its elements do not begin on bytes; keep it whole",
                                      from.dtype().name()));
  }
  if (region.element_count() == 0) return;
  RegionCopy(from, region, mode).to(to);
}

/// Copies a region whose dims 0 and 1 are merged.
void copy_rows(const TensorView& from, const Region& region, std::byte* to, CopyMode mode) {
  if (from.shape().rank() < 2) {
    throw InvalidArgument(
        fmt::format("region {} does not lie in a tensor of shape {}", region.to_string(), from.shape().to_string()));
  }
  const Tensor copy = from.is_contiguous() ? Tensor() : Tensor::copy_of(from);
  Shape merged = {from.shape()[0] * from.shape()[1]};
  for (std::size_t dim = 2; dim < from.shape().rank(); ++dim) merged.push_back(from.shape()[dim]);
  copy_product(TensorView(from.dtype(), merged, from.is_contiguous() ? from.data() : copy.view().data()), region, to,
               mode);
}

}  // namespace

void copy_region(const TensorView& from, const Region& region, std::byte* to, CopyMode mode) {
  if (region.covers(from.shape())) return copy_elements(from, to, mode);
  if (region.rows_differ()) return copy_rows(from, region, to, mode);
  copy_product(from, region, to, mode);
}

std::optional<TensorView> view_region(const TensorView& from, const Region& region) {
  if (region.covers(from.shape())) return from;
  if (region.rows_differ()) return std::nullopt;
  check_fits(from, region);
  TensorView view = from;
  for (std::size_t dim = 0; dim < region.dims().size(); ++dim) {
    const Ranges& ranges = region.dims()[dim];
    if (ranges.size() > 1) return std::nullopt;
    const Range range = ranges.empty() ? Range{} : ranges.front();
    if (range != Range{0, from.shape()[dim]}) view = view.slice(dim, range.begin, range.end);
  }
  return view;
}

}  // namespace levada
