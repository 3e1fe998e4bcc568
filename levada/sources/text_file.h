// Plain text: a file is one document.
#pragma once

#include "levada/sources/file_index.h"

namespace levada {

/// Reads the whole file once and checks that it is UTF-8. Throws SourceError, naming the byte where it is not.
FileIndex index_text(const File& file, const TokenFileOptions& options);

/// As make_jsonl_file().
std::unique_ptr<TokenFile> make_text_file(std::shared_ptr<const File> file, const FileIdentity& identity,
                                          FileIndex index, std::uint64_t index_bytes);

}  // namespace levada
