// A digest of a file of any size.
#pragma once

#include <string>

#include "levada/sources/file.h"

namespace levada {

/// Returns a digest of 64 evenly spaced blocks of 4 KiB, including the first and the last, because terabytes cannot be
/// read in full. A file no larger than those blocks is digested completely. Throws SourceError.
std::string sampled_digest(const File& file, std::uint64_t size);

}  // namespace levada
