// Memory that is made for one reduction, so that its input need not be copied.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "levada/engine/engine.h"
#include "levada/reduce/contribution.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// The tensors given, and the contributions of which they are the only input. One thread at a time.
class PlacedMemory {
 public:
  /// A writable tensor in `contribution`, which has room for it and no input yet. `piece`: one rank's part of `shape`.
  Tensor give(const Engine& group, Contribution contribution, const Shape& shape, const Shape& piece);
  /// That of `input`, if it is a tensor given for this group, whole, in whatever shape, and takes `bytes` in a message;
  /// else empty. The tensor must not be touched any more.
  std::optional<Contribution> take(const Engine& group, const Tensor& input, std::size_t bytes);

 private:
  struct Placed;
  std::map<const std::byte*, std::weak_ptr<Placed>> by_begin_;
};

}  // namespace levada
