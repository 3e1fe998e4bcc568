#include "levada/transfer/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "levada/base/error.h"
#include "levada/tensor/elements.h"
#include "levada/tree/path.h"

namespace levada {
namespace {

std::vector<std::string> steps_of(std::string_view path) {
  std::vector<std::string> steps;
  for (PathReader reader(path); !reader.done();) {
    const auto step = reader.next();
    if (!step) break;
    steps.push_back(step->text);
  }
  return steps;
}

bool names_boundaries(std::string_view key) {
  return (key.starts_with("cu_seqlens") || key.starts_with("cu_seq_lens")) && !key.ends_with("argmin");
}

/// cu_seqlens_q_padded includes the padding of each sequence; cu_seqlens_unpadded does not.
int padding_of(std::string_view key) {
  if (key.ends_with("unpadded")) return 0;
  return key.ends_with("padded") ? 2 : 1;
}

template <typename T>
std::vector<std::int64_t> positions_of(const Tensor& tensor) {
  std::vector<T> values(tensor.view().element_count());
  copy_elements(tensor.view(), reinterpret_cast<std::byte*>(values.data()));
  return {values.begin(), values.end()};
}

Segments read_segments(const Leaf& leaf, const LeafSpec& spec) {
  const auto* tensor = std::get_if<Tensor>(&leaf);
  const bool is_int32 = tensor != nullptr && tensor->dtype() == dtypes::int32;
  const bool is_usable =
      (is_int32 || (tensor != nullptr && tensor->dtype() == dtypes::int64)) && (spec.rank == 1 || spec.rank == 2);
  if (!is_usable) {
    const auto what =
        tensor == nullptr ? "no tensor" : fmt::format("{} {}", spec.dtype.name(), tensor->shape().to_string());
    throw InvalidArgument(
        fmt::format("{} is {}; a layout that divides packed sequences by zigzag needs an int32 or int64 tensor there, "
                    "[entries] for one row or [rows, entries]",
                    spec.path, what));
  }
  const Shape& shape = tensor->shape();
  return {.rows = spec.rank == 1 ? 1 : shape[0],
          .entries = shape[spec.rank - std::size_t{1}],
          .positions = is_int32 ? positions_of<std::int32_t>(*tensor) : positions_of<std::int64_t>(*tensor)};
}

std::size_t num_common_steps(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

bool divides_by_zigzag(const Placement& placement, const Mesh& mesh) {
  return std::holds_alternative<Zigzag>(placement) && mesh.span(axis_of(placement)).size() > 1;
}

PackedSegments::PackedSegments(const FlatTree& batch) {
  const auto leaves = batch.schema.leaves();
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    const LeafSpec& spec = leaves[leaf];
    if (spec.kind == LeafKind::none || spec.path.find("cu_seq") == std::string::npos) continue;
    auto steps = steps_of(spec.path);
    const auto key = std::ranges::find_if(steps, names_boundaries);
    if (key == steps.end()) continue;
    const int padding = padding_of(*key);
    steps.erase(key, steps.end());
    boundaries_.push_back({.path = spec.path,
                           .mapping = std::move(steps),
                           .padding = padding,
                           .segments = std::make_shared<const Segments>(read_segments(batch.leaves[leaf], spec))});
  }
}

FieldSegments PackedSegments::of(std::string_view path) const {
  if (boundaries_.empty()) return {};
  auto mapping = steps_of(path);
  if (!mapping.empty()) mapping.pop_back();
  const auto rank_of = [&](const Boundaries& each) {
    return std::pair(num_common_steps(each.mapping, mapping), each.padding);
  };
  const auto best = std::ranges::max_element(boundaries_, {}, rank_of);
  const auto other = std::ranges::find_if(boundaries_, [&](const Boundaries& each) {
    return rank_of(each) == rank_of(*best) && *each.segments != *best->segments;
  });
  return {best->segments, best->path, other == boundaries_.end() ? std::string() : other->path};
}

void PackedSegments::append_to(std::vector<std::int64_t>& key) const {
  for (const Boundaries& each : boundaries_) {
    key.insert(key.end(), {each.segments->rows, each.segments->entries});
    key.insert(key.end(), each.segments->positions.begin(), each.segments->positions.end());
  }
}

}  // namespace levada
