// JSON Lines: an object a line, one of its fields the text of a document.
#pragma once

#include "levada/sources/file_index.h"
#include "levada/sources/index_cache.h"

namespace levada {

/// Reads through `index`, which must be of this file as it was when `identity` was taken, with these options. Where the
/// file turns out to be another one, it removes `kept`, which may be null, so that the next run makes a new index.
std::unique_ptr<TokenFile> make_jsonl_file(std::shared_ptr<const File> file, const FileIdentity& identity,
                                           FileIndex index, std::uint64_t index_bytes, std::unique_ptr<KeptIndex> kept,
                                           const TokenFileOptions& options);

}  // namespace levada
