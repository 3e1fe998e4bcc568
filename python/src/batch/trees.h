// Python's nested containers as levada::Tree.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "levada/tree/tree.h"
#include "python/src/batch/batch_memory.h"
#include "python/src/batch/tensors.h"

namespace levada::python {

/// The classes that bytes may name, as levada/batch/classes.py numbers them: only registered ones; also the program's
/// own classes, in the messages of a job; or every class, and pickles.
enum class Allowed { registered, program, any };

inline Allowed allowed_in_batches(bool allow_pickle) {
  return allow_pickle ? Allowed::any : Allowed::program;
}
inline Allowed allowed_in_states(bool allow_pickle) {
  return allow_pickle ? Allowed::any : Allowed::registered;
}

/// Returns `batch` as a tree whose tensors view Python's memory and keep it alive. Throws Python's TypeError if a value
/// cannot be transferred; the message names it as in batch['meta'][2].fn, where `name` replaces "batch". With the GIL.
Tree to_tree(nanobind::handle batch, Allowed allowed, std::string_view name = "batch");

/// Returns the leaf for a None, bool, 64-bit integer, float, str or bytes, and nothing for a value that needs more than
/// a leaf. Throws Python's TypeError, naming place(), for a str without UTF-8 encoding. With the GIL.
std::optional<Leaf> plain_leaf(nanobind::handle value, const std::function<std::string()>& place);

/// Returns the Python object of a message that encode_tree() made from the result of to_tree(). Throws CorruptMessage
/// for other bytes, and what Rebuilder throws. With the GIL.
nanobind::object from_message(ByteView message, Allowed allowed);

/// The Python objects needed to take batches apart. Looking them up takes longer than taking a batch apart, so keep
/// this object from batch to batch, and destroy it with the GIL.
struct BatchClasses {
  BatchClasses();

  TensorLibraries libraries;
  nanobind::object take_apart;  ///< function of levada/batch/classes.py
};

/// A tree whose tensors are borrowed.
struct Lent {
  Tree tree;
  std::optional<BatchMemory::Place> place;  ///< memory of the tensors in a Block of a BatchMemory
};
/// Does the same as to_tree(). Tensors in a Block of `memory`, which may be null, are held only by that Block, not by
/// Python objects; the owners of all others are set aside in `spent` when they end.
Lent lend(nanobind::handle batch, Allowed allowed, BatchClasses& classes, BatchMemory* memory,
          const std::shared_ptr<DeferredOwners>& spent);

}  // namespace levada::python
