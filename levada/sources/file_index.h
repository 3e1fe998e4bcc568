// What one pass over a file finds out about its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "levada/sources/token_file.h"

namespace levada {

/// A file is not what its index says, though it seems unchanged.
class StaleIndex : public SourceError {
 public:
  using SourceError::SourceError;
};

struct ByteRange {
  std::uint64_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// Where a token of a JSON text begins: `offset` of its raw byte in the file (an escape's backslash; the closing quote
/// for the token that ends the document), and how many bytes of that escape's UTF-8 come before the token.
struct TextPlace {
  std::uint64_t offset = 0;
  unsigned skip = 0;

  std::uint64_t packed() const { return offset << 2 | skip; }
  static TextPlace unpacked(std::uint64_t value) { return {value >> 2, static_cast<unsigned>(value & 3)}; }
  bool operator==(const TextPlace&) const = default;
};

/// Where the documents of a file are: 12 bytes each.
struct DocumentTable {
  std::vector<std::uint64_t> begins;  ///< of the stored text, in the file
  std::vector<std::uint32_t> tokens;  ///< with the one that ends it

  bool operator==(const DocumentTable&) const = default;
};

/// Of a file opened by_document: `documents`, and for each document longer than the stride the cuts in it behind its
/// first token. Of others: no `documents`, and the cuts of all documents laid end to end.
struct FileIndex {
  FileContents contents;
  /// TextPlace::packed(), rising; empty for a kind of file that needs none.
  std::vector<std::uint64_t> cuts;
  DocumentTable documents;
  std::vector<ByteRange> skipped;  ///< bad lines, rising; neighbours are one range

  bool operator==(const FileIndex&) const = default;
};

/// How many cuts lie in `tokens` tokens.
inline std::int64_t count_cuts(std::int64_t tokens, std::int64_t stride, std::int64_t phase) {
  return tokens <= phase ? 0 : (tokens - phase - 1) / stride + 1;
}

/// How many cuts a document of `tokens` tokens has behind its first token.
inline std::int64_t count_document_cuts(std::int64_t tokens, std::int64_t stride) {
  return (tokens - 1) / stride;
}

}  // namespace levada
