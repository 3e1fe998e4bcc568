// The parts of a corpus for training, validation and testing.
#pragma once

#include <span>
#include <string_view>

#include "levada/sources/token_file.h"

namespace levada {

/// Returns which documents of each file belong to a part of a split. "train", "valid" and "test" name the first, second
/// and third of the proportions, such as 98, 1, 1, and follow each other in the file. The parts are therefore disjoint,
/// and a document stays in its part when files are added or removed. Without proportions, "train" has all documents.
/// See share_of_documents() for the bounds. Throws InvalidArgument for invalid proportions and for a part without
/// documents.
DocumentShare part_of_split(std::span<const double> proportions, std::string_view part);

}  // namespace levada
