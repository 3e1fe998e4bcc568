// Python's batches out of what messages hold.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "levada/tree/schema.h"
#include "python/src/batch/tensors.h"
#include "python/src/batch/trees.h"

namespace levada::python {

/// How tensors come out. Torch has none but such as can be written: it gets copies of those that may not be.
enum class Shown {
  as_is,             ///< numpy arrays can be written where the tensor may be
  read_only_arrays,  ///< numpy arrays cannot
  without_torch,     ///< numpy arrays cannot, torch tensors are refused
  shared,            ///< numpy arrays cannot, and torch tensors must not be written
};

class Recipe;

/// Makes what to_tree() was given. What batches of one structure have in common is found once, which takes longer than
/// to put one together; so keep this from batch to batch. One thread at a time, with the GIL; to be ended with it too.
class Rebuilder {
 public:
  /// Tensors that were not made by to_tree() are of the kind `others`.
  explicit Rebuilder(Allowed allowed, Shown shown = Shown::as_is, TensorKind others = TensorKind::array);
  ~Rebuilder();

  /// Tensors keep the memory of `batch` alive. Throws Unsupported for a class that is not allowed or not imported here,
  /// InvalidArgument for a torch tensor that is refused.
  nanobind::object rebuild(const FlatTree& batch);
  nanobind::object rebuild(const Tree& batch);

 private:
  class Making;
  std::shared_ptr<const Recipe> recipe_of(const FlatTree& batch);

  Allowed allowed_;
  nanobind::int_ allowed_in_python_;
  Shown shown_;
  TensorKind others_;
  TensorLibraries libraries_;
  nanobind::object put_together_;  ///< of levada/batch/classes.py
  std::unordered_map<std::uint64_t, std::shared_ptr<const Recipe>> recipes_;
  Schema last_;    ///< of a batch that came as a tree
  int depth_ = 0;  ///< of messages within the one that is being rebuilt
};

}  // namespace levada::python
