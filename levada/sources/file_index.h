// What one pass over a file finds out about its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "levada/sources/token_file.h"

namespace levada {

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

struct FileIndex {
  FileContents contents;
  /// TextPlace::packed() of the tokens at phase, phase + stride, ...; empty for a kind of file that needs none.
  std::vector<std::uint64_t> cuts;
  std::vector<ByteRange> skipped;  ///< bad lines, rising; neighbours are one range

  bool operator==(const FileIndex&) const = default;
};

/// How many cuts lie in `tokens` tokens.
inline std::int64_t count_cuts(std::int64_t tokens, std::int64_t stride, std::int64_t phase) {
  return tokens <= phase ? 0 : (tokens - phase - 1) / stride + 1;
}

}  // namespace levada
