// The item traits of C++ pipelines: items are Trees.
#pragma once

#include "levada/pipeline/item.h"

namespace levada::pipeline {

/// Batches are lists, and zip yields tuples. Items are serialized in the native format of this build; tensors of more
/// than a few hundred bytes are sent as separate buffers, contiguous ones without a copy. Throws InvalidArgument for
/// LanguageObject items, and for tensors that are not in this machine's memory.
class TreeItemTraits final : public ItemTraits {
 public:
  Item list_of(std::vector<Item> items) const override;
  Item tuple_of(std::vector<Item> items) const override;
  std::vector<Item> elements(Item item) const override;
  Arrays arrays_of(const Item& item) const override;
  Item dict_of(Arrays arrays) const override;
  bool detach(Item& item) const override;
  Tree to_tree(const Item& item) const override;
  std::vector<Item> from_trees(std::vector<Tree> trees) const override;
  Packed pack(std::span<const Item> items) const override;
  std::vector<Item> unpack(ByteView head, std::span<const std::span<std::byte>> buffers,
                           std::shared_ptr<const void> hold) const override;
};

}  // namespace levada::pipeline
