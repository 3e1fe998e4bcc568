#include "levada/transfer/cut.h"

namespace levada {
namespace {

/// Whether an alias and its original would no longer be the same tensor for this audience.
bool parts_an_alias(const Schema& schema, std::span<const Move* const> move_of) {
  const auto leaves = schema.leaves();
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    if (leaves[leaf].alias_of < 0) continue;
    const Move* original = move_of[static_cast<std::size_t>(leaves[leaf].alias_of)];
    if (move_of[leaf] != nullptr && original != nullptr && move_of[leaf]->region != original->region) return true;
  }
  return false;
}

Cut::Part make_part(const FlatTree& batch, int leaf, const Region& region) {
  Cut::Part part{.leaf = leaf};
  const auto* tensor = std::get_if<Tensor>(&batch.leaves[static_cast<std::size_t>(leaf)]);
  if (tensor == nullptr) return part;
  part.whole = region.covers(tensor->shape());
  part.shape = part.whole ? tensor->shape() : region.shape();
  part.bytes = tensor->dtype().bytes(part.whole ? tensor->view().element_count() : region.element_count());
  if (!part.whole) part.region = region;
  return part;
}

}  // namespace

std::vector<Field> fields_of(const FlatTree& batch) {
  std::vector<Field> fields;
  fields.reserve(batch.leaves.size());
  for (std::size_t leaf = 0; leaf < batch.leaves.size(); ++leaf) {
    const auto& spec = batch.schema.leaves()[leaf];
    const auto* tensor = std::get_if<Tensor>(&batch.leaves[leaf]);
    fields.push_back(tensor == nullptr ? Field{spec.path, {}, {}} : Field{spec.path, tensor->dtype(), tensor->shape()});
  }
  return fields;
}

Cut make_cut(const FlatTree& batch, std::span<const Move> moves) {
  const std::size_t count = batch.leaves.size();
  std::vector<const Move*> move_of(count, nullptr);
  for (const Move& move : moves) move_of.at(static_cast<std::size_t>(move.field)) = &move;

  auto keep = std::make_unique<bool[]>(count);
  for (std::size_t leaf = 0; leaf < count; ++leaf) keep[leaf] = move_of[leaf] != nullptr;
  const Schema& whole = batch.schema;
  const bool parted = parts_an_alias(whole, move_of);

  Cut cut;
  cut.schema = (parted ? whole.without_aliases() : whole).select(std::span(keep.get(), count));
  // select() leaves None in the place of a leaf that a list, tuple or record loses, so its leaves are matched by path.
  std::size_t leaf = 0;
  for (const LeafSpec& spec : cut.schema.leaves()) {
    while (whole.leaves()[leaf].path != spec.path) ++leaf;
    const bool sent = move_of[leaf] != nullptr;
    cut.parts.push_back(sent ? make_part(batch, static_cast<int>(leaf), move_of[leaf]->region) : Cut::Part{.leaf = -1});
    if (spec.alias_of >= 0) cut.parts.back().bytes = 0;
    cut.tensor_bytes += cut.parts.back().bytes;
    ++leaf;
  }
  return cut;
}

}  // namespace levada
