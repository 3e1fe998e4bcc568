// Python's nested containers as levada::Tree, and back.
#pragma once

#include <nanobind/nanobind.h>

#include "levada/tree/tree.h"

namespace levada::python {

/// `batch` as a tree whose tensors view Python's memory and keep it alive. Throws Python's TypeError, naming the place
/// as in batch['meta'][2].fn, for what cannot cross. With the GIL.
Tree to_tree(nanobind::handle batch, bool allow_pickle);

/// How torch tensors, which can always be written, come out of memory that may not be.
enum class TorchAccess { copy, refuse };

/// What to_tree() was given. Tensors keep the memory of `tree` alive. Throws Unsupported where a class or a library is
/// not imported here, InvalidArgument for a torch tensor that is refused. With the GIL.
nanobind::object from_tree(const Tree& tree, bool allow_pickle, TorchAccess access);

}  // namespace levada::python
