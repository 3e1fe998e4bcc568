// Rebuilds Python's batches from messages.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "levada/tree/schema.h"
#include "python/src/batch/tensors.h"
#include "python/src/batch/trees.h"

namespace levada::python {

/// How tensors are returned. All torch tensors are writable, so torch gets copies of those that may not be written.
enum class TensorAccess {
  as_is,             ///< numpy arrays are writable if the tensor is
  read_only_arrays,  ///< numpy arrays are read-only
  without_torch,     ///< numpy arrays are read-only; torch tensors are refused
  shared,            ///< numpy arrays are read-only; torch tensors must not be written
};

class Recipe;

/// Rebuilds the batches that to_tree() took apart. Work that is common to batches of the same structure takes longer
/// than building a batch and is done once, so keep this object from batch to batch. Used by one thread at a time, with
/// the GIL, and destroyed with the GIL.
class Rebuilder {
 public:
  /// Tensors that to_tree() did not make become `others`.
  explicit Rebuilder(Allowed allowed, TensorAccess access = TensorAccess::as_is, TensorKind others = TensorKind::array);
  ~Rebuilder();

  /// Tensors keep the memory of `batch` alive. Throws Unsupported for a class that is not allowed or not imported here,
  /// InvalidArgument for a torch tensor that is refused.
  nanobind::object rebuild(const FlatTree& batch);
  nanobind::object rebuild(const Tree& batch);

 private:
  class BatchBuilder;
  std::shared_ptr<const Recipe> recipe_of(const FlatTree& batch);

  Allowed allowed_;
  nanobind::int_ allowed_in_python_;
  TensorAccess access_;
  TensorKind others_;
  TensorLibraries libraries_;
  nanobind::object put_together_;  ///< function of levada/batch/classes.py
  std::unordered_map<std::uint64_t, std::shared_ptr<const Recipe>> recipes_;
  Schema last_;    ///< schema of a batch that was passed as a tree
  int depth_ = 0;  ///< nesting depth of messages in the one that is being rebuilt
};

}  // namespace levada::python
