// The one pass over a .jsonl file, and what it finds out.
#pragma once

#include <functional>

#include "levada/base/memory_limits.h"
#include "levada/sources/file_index.h"
#include "levada/sources/jsonl_documents.h"

namespace levada {

/// Reads the whole file once. Throws SourceError for the first line that cannot be used, unless options.skip_bad, and
/// when no document is found. `line_limit`: longer lines are bad. Throws InvalidArgument before the index takes more
/// memory than `limits` returns as available. As soon as an estimate from the part that has been read says that this
/// will happen, options.warn is called with it.
FileIndex index_jsonl(
    const File& file, const TokenFileOptions& options, std::uint64_t line_limit = longest_line,
    const std::function<MemoryLimits()>& limits = [] { return memory_limits(); });

}  // namespace levada
