// All documents of a .jsonl file, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "levada/sources/line_reader.h"
#include "levada/sources/token_file.h"

namespace levada {

/// The longest line that is read. The parser takes some six times as much memory.
inline constexpr std::uint64_t longest_line = std::uint64_t{64} << 20;

/// Who hears what is in a .jsonl file.
struct JsonlVisitor {
  /// All bytes in order, as they are read.
  std::function<void(std::string_view)> on_bytes;
  /// What stands between the quotes of a document's text, and where in the file. Its escapes are not checked: throws
  /// BadLine for a wrong one, as if there had been no such document. `line_padding` bytes behind it can be read.
  std::function<void(std::string_view raw, std::uint64_t offset)> on_document;
  /// A line that is left out.
  std::function<void(const Line&)> on_bad_line;
};

struct JsonlCounts {
  std::int64_t documents = 0, bad_lines = 0;
};

/// Reads the whole file once. Throws SourceError for the first line that cannot be used, unless options.skip_bad, when
/// no document is found, and if the file changes meanwhile. `line_limit`: longer lines are bad.
JsonlCounts visit_jsonl(const File& file, const TokenFileOptions& options, const JsonlVisitor& visitor,
                        std::uint64_t line_limit = longest_line);

}  // namespace levada
