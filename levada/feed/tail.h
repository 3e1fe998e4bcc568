// The last round of a feed, if too few samples are left to fill it.
#pragma once

#include "levada/tree/tree.h"

namespace levada {

/// The treatment of a last round that the data does not fill.
enum class Tail : std::uint8_t {
  drop,    ///< the round is skipped on all ranks
  pad,     ///< the round is filled up with copies of the last sample, with loss_mask set to 0
  short_,  ///< ranks get the remaining samples: fewer than a full batch, perhaps none
};

/// Returns "drop", "pad" or "short".
std::string_view to_string(Tail tail);
/// Parses the text of to_string(). Throws InvalidArgument, naming the argument `what`.
Tail parse_tail(std::string_view word, std::string_view what = "tail");

/// Returns the first `kept` of a batch's `samples` >= 1 samples, followed by `padding` copies of the last one, with
/// zeros in fields named loss_mask. Tensors whose dim 0 has another extent stay as they are. Throws Unsupported if
/// samples do not begin on byte boundaries.
Tree with_padding(const Tree& batch, std::int64_t samples, std::int64_t kept, std::int64_t padding);

}  // namespace levada
