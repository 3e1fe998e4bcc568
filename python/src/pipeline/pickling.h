// Serializes Python objects for transport between processes of one pipeline.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "python/src/base/callables.h"
#include "python/src/batch/tensors.h"
#include "python/src/pipeline/detach.h"
#include "python/src/pipeline/language_object.h"

namespace levada::python {

/// Pickles many items together, with protocol 5, unless they share objects: on arrival, no two items share an object.
/// The memory of tensors and arrays is transferred outside the pickle, and unpacked tensors view the memory in which it
/// was received. With or without the GIL.
class PythonItemTraits final : public pipeline::ItemTraits {
 public:
  PythonItemTraits();
  ~PythonItemTraits() override;

  pipeline::Item list_of(std::vector<pipeline::Item> items) const override;
  pipeline::Item tuple_of(std::vector<pipeline::Item> items) const override;
  std::vector<pipeline::Item> elements(pipeline::Item item) const override;
  /// Accepts arrays of numpy, tensors of torch, other DLPack producers, and dicts of them.
  pipeline::Arrays arrays_of(const pipeline::Item& item) const override;
  pipeline::Item dict_of(pipeline::Arrays arrays) const override;
  /// Copies the item, or replaces it by its pickle, which only pack() understands. Returns false if it cannot be
  /// pickled.
  bool detach(pipeline::Item& item) const override;
  /// The function of detach.h.
  nanobind::object copy_of(nanobind::handle object) const { return detached(object.ptr(), *libraries_); }
  Tree to_tree(const pipeline::Item& item) const override;
  std::vector<pipeline::Item> from_trees(std::vector<Tree> trees) const override;
  /// Throws StageFailed with the exception of an object that cannot be pickled.
  Packed pack(std::span<const pipeline::Item> items) const override;
  std::vector<pipeline::Item> unpack(ByteView head, std::span<const std::span<std::byte>> buffers,
                                     std::shared_ptr<const void> hold) const override;

 private:
  Tensor other_array(nanobind::handle value, const std::string& name, TensorKind& kind) const;

  class Pickler;
  std::unique_ptr<Pickler, DeleteWithGil> pickler_;
  std::unique_ptr<TensorLibraries, DeleteWithGil> libraries_;
};

}  // namespace levada::python
