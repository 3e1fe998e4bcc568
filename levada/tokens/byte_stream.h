// The content of a file from start to end, decompressed if necessary.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "levada/sources/file.h"
#include "levada/sources/memory_claims.h"

namespace levada {

/// A sequential stream of bytes. Used by one thread at a time.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Fills the front of `into` and returns the number of bytes; zero only at the end. Throws SourceError.
  virtual std::size_t read(std::span<char> into) = 0;
  /// Returns the number of stored (compressed) bytes read so far.
  virtual std::uint64_t stored_bytes() const = 0;
};

/// The compression of a file, determined by its name.
enum class Compression : std::uint8_t { none, gzip, zstd };

/// Returns the compression for the suffix of `path`: .gz, .zst. Stores the name without the suffix in `*rest` unless
/// that is null.
Compression compression_of(const std::string& path, std::string* rest = nullptr);

/// Reads a file, decompressed as `compression` specifies: all members of a .gz, even if zeros follow, and all frames of
/// a .zst. Throws SourceError for a file that is truncated, damaged or changed while it is read. Skips a byte order
/// mark at the start of the content. Claims the memory of a large .zst window from `memory`; throws InvalidArgument if
/// there is not enough.
std::unique_ptr<ByteStream> open_stream(std::shared_ptr<const File> file, Compression compression,
                                        std::shared_ptr<MemoryClaims> memory = std::make_shared<MemoryClaims>());

}  // namespace levada
