// The texts of a file's documents, one behind the other: for what reads all of them once.
#pragma once

#include <functional>
#include <string_view>

#include "levada/sources/token_file.h"

namespace levada {

struct DocumentVisitor {
  /// More of the document under way: UTF-8.
  std::function<void(std::string_view)> on_text;
  std::function<void()> on_end;
};

struct DocumentCounts {
  std::int64_t documents = 0, bad_lines = 0;
};

/// Reads the whole file, a .jsonl or .txt, once. Of `options`, text_field, skip_bad and progress count. Throws
/// SourceError as open_token_file() does.
DocumentCounts read_documents(const File& file, const TokenFileOptions& options, const DocumentVisitor& visitor);

}  // namespace levada
