// A digest of a file of any size.
#pragma once

#include <string>

#include "levada/sources/file.h"

namespace levada {

/// Of 64 evenly spaced blocks of 4 KiB, the first and the last among them: of terabytes, all cannot be read. All of a
/// file that is no larger than those. Throws SourceError.
std::string sampled_digest(const File& file, std::uint64_t size);

}  // namespace levada
