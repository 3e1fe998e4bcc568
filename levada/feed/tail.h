// The last round of a feed, where there are fewer samples than it takes.
#pragma once

#include "levada/tree/tree.h"

namespace levada {

/// What becomes of a last round that the data does not fill.
enum class Tail : std::uint8_t {
  drop,    ///< no rank gets any of it
  pad,     ///< filled up with the last sample, whose loss_mask is 0 there
  short_,  ///< ranks get what there is: fewer samples, perhaps none
};

/// "drop", "pad", "short".
std::string_view to_string(Tail tail);
/// The inverse of to_string(). Throws InvalidArgument, saying that `what` must be one of them.
Tail parse_tail(std::string_view word, std::string_view what = "tail");

/// The first `kept` of a batch's `samples` >= 1 samples, then its last one `padding` times, with zeros in fields named
/// loss_mask. Samples lie along dim 0 of every tensor whose extent that is;
/// what has another extent stays as it is. Throws Unsupported for samples that do not begin on bytes.
Tree with_padding(const Tree& batch, std::int64_t samples, std::int64_t kept, std::int64_t padding);

}  // namespace levada
