#include "levada/tensor/packed_row.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

std::span<const std::int64_t> inner_extents(const TensorView& segment) {
  return std::span(segment.shape().begin(), segment.shape().end()).subspan(1);
}

void fill(std::span<std::byte> gap, ByteView element) {
  if (element.empty()) {
    std::ranges::fill(gap, std::byte{0});
    return;
  }
  for (; !gap.empty(); gap = gap.subspan(element.size())) std::ranges::copy(element, gap.begin());
}

}  // namespace

void check_segments(std::span<const TensorView> segments) {
  const TensorView& first = segments.front();
  for (std::size_t at = 0; at < segments.size(); ++at) {
    const TensorView& segment = segments[at];
    const bool is_alike = segment.dtype() == first.dtype() && segment.shape().rank() == first.shape().rank() &&
                          std::ranges::equal(inner_extents(segment), inner_extents(first));
    if (!is_alike) {
      throw InvalidArgument(fmt::format("sample {} is {} {}, the first is {} {}; only the first extent may differ", at,
                                        segment.dtype().name(), segment.shape().to_string(), first.dtype().name(),
                                        first.shape().to_string()));
    }
  }
  if (!first.dtype().is_byte_sized()) {
    throw InvalidArgument(
        fmt::format("elements of {} are not whole bytes and cannot be packed; convert them", first.dtype().name()));
  }
}

void pack_row(std::span<const TensorView> segments, std::span<const std::int64_t> begins, ByteView padding,
              std::span<std::byte> row) {
  const auto mode = copy_mode_for(row.size());
  std::size_t end = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto bytes = segments[i].byte_count();
    const auto length = static_cast<std::size_t>(segments[i].shape()[0]);
    const auto begin = length == 0 ? end : static_cast<std::size_t>(begins[i]) * (bytes / length);
    fill(row.subspan(end, begin - end), padding);
    copy_elements(segments[i], row.data() + begin, mode);
    end = begin + bytes;
  }
  fill(row.subspan(end), padding);
}

}  // namespace levada
