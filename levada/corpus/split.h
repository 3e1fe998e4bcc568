// Parts of a corpus that are trained on, validated with and tested with.
#pragma once

#include <span>
#include <string_view>

#include "levada/sources/token_file.h"

namespace levada {

/// Which documents of each file a part of a split has: "train", "valid" and "test" stand for the first, second and
/// third of the proportions, such as 98, 1, 1, and follow each other in the file; without proportions train has all.
/// So the parts are disjoint, and a document stays in its part when other files come or go. The bounds are those of
/// Megatron-LM's --split. Throws InvalidArgument for proportions that cannot work and for a part that gets nothing.
DocumentShare part_of_split(std::span<const double> proportions, std::string_view part);

}  // namespace levada
