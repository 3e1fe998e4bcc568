// Sums that are made under an engine: by a backend's own collectives, or by the network.
#pragma once

#include <cstddef>
#include <span>

#include "levada/base/deadline.h"
#include "levada/tensor/dtype.h"

namespace levada {

/// Adds up elements of a group's ranks. All of them make the same calls of reduce_scatter() in the same order, one
/// thread at a time on each. It keeps its engine's ranks, not its engine.
class GroupReducer {
 public:
  virtual ~GroupReducer() = default;

  /// Whether the same inputs give the same bits on every run, whatever is timed how.
  virtual bool is_deterministic() const = 0;
  /// Whether it adds up elements of `dtype`; halves only where partial sums are float32 at least. The same on all
  /// ranks.
  virtual bool can_sum(DType dtype) const = 0;
  /// `from`: a piece for each rank, side by side, of to.size() bytes each, not none. `to`: the sum of all ranks' pieces
  /// for this one, in an order that the reducer chooses. Blocks. Throws Unsupported for a dtype, InvalidArgument for
  /// sizes that do not fit; Timeout, and EngineError where a rank is gone, which the engine names. After these two it
  /// is of no use any more.
  virtual void reduce_scatter(DType dtype, std::span<const std::byte> from, std::span<std::byte> to,
                              Deadline deadline) = 0;
};

/// Throws what reduce_scatter() throws before it does anything, in a group of `ranks`.
void check_pieces(const GroupReducer& reducer, DType dtype, int ranks, std::size_t from_bytes, std::size_t to_bytes);

}  // namespace levada
