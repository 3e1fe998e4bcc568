// JSON Lines: an object a line, one of its fields the text of a document.
#pragma once

#include "levada/sources/file_index.h"

namespace levada {

/// Reads through `index`, which must be of this file as it was when `identity` was taken, with these options.
std::unique_ptr<TokenFile> make_jsonl_file(std::shared_ptr<const File> file, const FileIdentity& identity,
                                           FileIndex index, std::uint64_t index_bytes, const TokenFileOptions& options);

}  // namespace levada
