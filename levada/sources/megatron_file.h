// Megatron-LM's .bin/.idx as a TokenFile.
#pragma once

#include "levada/sources/token_file.h"

namespace levada {

/// `path`: the prefix, or the name of either file. Tokens are those stored, in the order of the sequences, and nothing
/// is added to them: what ends a document is up to who wrote it. Reading can begin at any of them. Throws SourceError
/// for files that cannot be opened, are damaged, or hold no integers.
std::unique_ptr<TokenFile> open_megatron_file(const std::string& path, const TokenFileOptions& options);

}  // namespace levada
