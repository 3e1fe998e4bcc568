#include "levada/feed/labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "levada/base/error.h"
#include "levada/transfer/segments.h"

namespace levada {
namespace {

constexpr std::int64_t no_loss = -100;

/// Returns whether a placement divides rows among several ranks, and not only the batch.
bool cuts_rows(const Placement& placement, const Mesh& mesh) {
  const auto* shard = std::get_if<Shard>(&placement);
  return (shard != nullptr && shard->dim > 0 && mesh.span(shard->axis).size() > 1) ||
         divides_by_zigzag(placement, mesh);
}

/// Returns the leaf with that key in the same mapping as `path`; null if there is none.
const Leaf* find_sibling(const FlatTree& batch, std::string_view path, std::string_view key) {
  const auto mapping = path.substr(0, path.size() - std::string_view("labels").size());
  const auto leaves = batch.schema.leaves();
  const auto found = std::ranges::find_if(leaves, [&](const LeafSpec& spec) {
    return std::string_view(spec.path).starts_with(mapping) &&
           std::string_view(spec.path).substr(mapping.size()) == key;
  });
  return found == leaves.end() ? nullptr : &batch.leaves[static_cast<std::size_t>(found - leaves.begin())];
}

template <typename T>
bool are_own_tokens(std::span<const T> labels, std::span<const T> tokens) {
  bool are_next = true;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == T{no_loss}) continue;
    if (labels[i] != tokens[i]) return false;
    are_next = are_next && (i + 1 == labels.size() || labels[i] == tokens[i + 1]);
  }
  return !are_next;  // a single token proves nothing
}

bool are_own_tokens(const Leaf& labels, const Leaf& tokens) {
  const auto *a = std::get_if<Tensor>(&labels), *b = std::get_if<Tensor>(&tokens);
  if (a == nullptr || b == nullptr || a->dtype() != b->dtype() || a->shape() != b->shape()) return false;
  if (!a->view().is_contiguous() || !b->view().is_contiguous()) return false;
  if (a->dtype() == dtypes::int64) return are_own_tokens(a->as<std::int64_t>(), b->as<std::int64_t>());
  return a->dtype() == dtypes::int32 && are_own_tokens(a->as<std::int32_t>(), b->as<std::int32_t>());
}

}  // namespace

bool may_part_labels(const Layout& layout, const Mesh& mesh) {
  const auto cuts = [&](const Placement& placement) { return cuts_rows(placement, mesh); };
  return std::ranges::any_of(layout.otherwise, cuts) || std::ranges::any_of(layout.rules, [&](const auto& rule) {
           return std::ranges::any_of(rule.placements, cuts);
         });
}

void expect_shifted_labels(const FlatTree& batch, const Layout& layout, const Mesh& mesh) {
  const auto leaves = batch.schema.leaves();
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    const std::string& path = leaves[leaf].path;
    if (path != "labels" && !path.ends_with(".labels")) continue;
    const auto placements = layout.placements_of(path);
    const bool is_divided =
        std::ranges::any_of(placements, [&](const Placement& each) { return cuts_rows(each, mesh); });
    if (!is_divided || find_sibling(batch, path, "shift_labels") != nullptr) continue;
    const Leaf* const tokens = find_sibling(batch, path, "input_ids");
    if (tokens == nullptr || !are_own_tokens(batch.leaves[leaf], *tokens)) continue;
    throw InvalidArgument(fmt::format(
        "{} are the input_ids at the same places, which a model shifts itself: the layout would separate them from the "
        "tokens that predict them; pass shift_labels, as levada.collate_packed(shift_labels=True) does",
        path));
  }
}

}  // namespace levada
