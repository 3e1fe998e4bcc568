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

/// Which classes bytes may name, as levada/batch/classes.py numbers them: registered ones; also the program's own, in
/// the messages of a job; every class, and pickles.
enum class Allowed { registered, program, any };

inline Allowed allowed_in_batches(bool allow_pickle) {
  return allow_pickle ? Allowed::any : Allowed::program;
}
inline Allowed allowed_in_states(bool allow_pickle) {
  return allow_pickle ? Allowed::any : Allowed::registered;
}

/// `batch` as a tree whose tensors view Python's memory and keep it alive. Throws Python's TypeError, naming the place
/// as in batch['meta'][2].fn, for what cannot cross; `name` is that of the whole. With the GIL.
Tree to_tree(nanobind::handle batch, Allowed allowed, std::string_view name = "batch");

/// Returns the leaf that stands for a None, bool, integer of 64 bits, float, str or bytes, and nothing for what takes
/// more than a leaf. Throws Python's TypeError, naming place(), for a str that has no UTF-8. With the GIL.
std::optional<Leaf> plain_leaf(nanobind::handle value, const std::function<std::string()>& place);

/// Returns the Python object of a message that encode_tree() made of what to_tree() returned. Throws CorruptMessage for
/// other bytes, and what Rebuilder throws. With the GIL.
nanobind::object from_message(ByteView message, Allowed allowed);

/// What Python is asked for before a batch can be taken apart: it takes longer than to do that. To be kept, and ended
/// with the GIL.
struct BatchClasses {
  BatchClasses();

  TensorLibraries libraries;
  nanobind::object take_apart;  ///< of levada/batch/classes.py
};

/// A tree whose tensors are lent.
struct Lent {
  Tree tree;
  std::optional<BatchMemory::Place> place;  ///< of those that lie in a Block of a BatchMemory
};
/// As to_tree(). Tensors in a Block of `memory`, which may be null, are held by that Block alone and not by Python's
/// objects; what holds the others is put aside in `spent` when it ends.
Lent lend(nanobind::handle batch, Allowed allowed, BatchClasses& classes, BatchMemory* memory,
          const std::shared_ptr<Spent>& spent);

}  // namespace levada::python
