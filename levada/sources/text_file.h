// Plain text: a file is one document.
#pragma once

#include <functional>
#include <string_view>

#include "levada/sources/file_index.h"

namespace levada {

/// Reads the whole file once, in pieces of whole characters. Throws SourceError, naming the byte where it is not UTF-8,
/// and if the file changes meanwhile.
void visit_text(const File& file, const std::function<void(std::string_view)>& on_piece);

/// What visit_text() finds out. Throws as that does.
FileIndex index_text(const File& file, const TokenFileOptions& options);

/// As make_jsonl_file().
std::unique_ptr<TokenFile> make_text_file(std::shared_ptr<const File> file, const FileIdentity& identity,
                                          FileIndex index, std::uint64_t index_bytes);

}  // namespace levada
