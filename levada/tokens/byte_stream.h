// The content of a file from its start to its end, decompressed where it is compressed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "levada/sources/file.h"
#include "levada/sources/memory_claims.h"

namespace levada {

/// One thread at a time.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Fills the front of `into` and returns how many bytes that are; zero only at the end. Throws SourceError.
  virtual std::size_t read(std::span<char> into) = 0;
  /// Bytes of the file read so far, as they are stored.
  virtual std::uint64_t stored_bytes() const = 0;
};

/// How a file's content is stored, by its name.
enum class Compression : std::uint8_t { none, gzip, zstd };

/// Returns the compression by the suffix of `path`: .gz, .zst. Stores the name without the suffix in `*rest` unless
/// that is null.
Compression compression_of(const std::string& path, std::string* rest = nullptr);

/// Reads a file, decompressed as `compression` says. Reads all members of a .gz, also with zeros
/// behind them, and all frames of a .zst. A file that ends in the middle of one, is damaged or changes while it is read
/// is a SourceError. Skips a byte order mark at the start of the content. Announces the memory of a large .zst window
/// to `memory`: InvalidArgument if there is not enough.
std::unique_ptr<ByteStream> open_stream(std::shared_ptr<const File> file, Compression compression,
                                        std::shared_ptr<MemoryClaims> memory = std::make_shared<MemoryClaims>());

}  // namespace levada
