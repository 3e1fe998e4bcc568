#include "levada/transfer/portion.h"

namespace levada {
namespace {

/// Returns whether this audience gets different parts of an alias and of its original.
bool parts_an_alias(const Schema& schema, std::span<const Move* const> move_of) {
  const auto leaves = schema.leaves();
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    if (leaves[leaf].alias_of < 0) continue;
    const Move* original = move_of[static_cast<std::size_t>(leaves[leaf].alias_of)];
    if (move_of[leaf] != nullptr && original != nullptr && move_of[leaf]->region != original->region) return true;
  }
  return false;
}

Portion::Part make_part(const FlatTree& batch, int leaf, const Region& region) {
  Portion::Part part{.leaf = leaf};
  const auto* tensor = std::get_if<Tensor>(&batch.leaves[static_cast<std::size_t>(leaf)]);
  if (tensor == nullptr) return part;
  part.whole = region.covers(tensor->shape());
  part.shape = part.whole ? tensor->shape() : region.shape();
  part.bytes = tensor->dtype().bytes(part.whole ? tensor->view().element_count() : region.element_count());
  if (!part.whole) part.region = region;
  return part;
}

}  // namespace

std::vector<Field> fields_of(const FlatTree& batch, const PackedSegments& segments) {
  std::vector<Field> fields;
  fields.reserve(batch.leaves.size());
  for (std::size_t leaf = 0; leaf < batch.leaves.size(); ++leaf) {
    const auto& spec = batch.schema.leaves()[leaf];
    const auto* tensor = std::get_if<Tensor>(&batch.leaves[leaf]);
    fields.push_back(tensor == nullptr ? Field{spec.path, {}, {}}
                                       : Field{spec.path, tensor->dtype(), tensor->shape(), segments.of(spec.path)});
  }
  return fields;
}

Portion make_portion(const FlatTree& batch, std::span<const Move> moves) {
  const std::size_t count = batch.leaves.size();
  std::vector<const Move*> move_of(count, nullptr);
  for (const Move& move : moves) move_of.at(static_cast<std::size_t>(move.field)) = &move;

  auto keep = std::make_unique<bool[]>(count);
  for (std::size_t leaf = 0; leaf < count; ++leaf) keep[leaf] = move_of[leaf] != nullptr;
  const Schema& whole = batch.schema;

  Portion portion;
  const std::span<const bool> kept(keep.get(), count);
  portion.schema = (parts_an_alias(whole, move_of) ? whole.without_aliases() : whole).select(kept);
  const auto source = whole.selected_leaves(kept);
  for (std::size_t i = 0; i < source.size(); ++i) {
    const Move* move = source[i] < 0 ? nullptr : move_of[static_cast<std::size_t>(source[i])];
    portion.parts.push_back(move == nullptr ? Portion::Part{.leaf = -1} : make_part(batch, source[i], move->region));
    if (portion.schema.leaves()[i].alias_of >= 0) portion.parts.back().bytes = 0;
    portion.tensor_bytes += portion.parts.back().bytes;
  }
  return portion;
}

}  // namespace levada
