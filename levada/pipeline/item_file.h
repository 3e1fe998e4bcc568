// Files of items: written once, sequentially, then readable from any item.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "levada/base/atomic_file.h"
#include "levada/sources/file.h"
#include "levada/tree/tree.h"

namespace levada::pipeline {

/// The index of an item file. The file consists of chunks, each a 64-byte-aligned message (tree/codec.h) of a list of
/// items; then this index, encoded; then 24 bytes: the magic number (8), the size of the index (8) and its XXH3-64 (8).
struct ItemFileContents {
  struct Chunk {
    std::uint64_t offset = 0, bytes = 0;
    std::int64_t items = 0;
    std::uint64_t hash = 0;  ///< XXH3-64
    static auto fields(auto& self) { return std::tie(self.offset, self.bytes, self.items, self.hash); }
  };
  std::string origin;  ///< description of how the items were made, for humans and for comparison
  std::vector<Chunk> chunks;
  static auto fields(auto& self) { return std::tie(self.origin, self.chunks); }
};

/// Writes an item file. Leaves no file if destroyed before finish(). One thread at a time.
class ItemFileWriter {
 public:
  /// Throws FileBusy if another process is writing this file, and SourceError if it cannot be created. `mode`: as for
  /// AtomicFile.
  ItemFileWriter(std::string path, std::string origin, mode_t mode = private_mode);

  /// Copies `item`. Throws InvalidArgument for an item that does not fit in a message, and SourceError for a full disk.
  void add(const Tree& item);
  /// Completes the file and renames it into place.
  void finish();

 private:
  void write_chunk();

  AtomicFile file_;
  ItemFileContents contents_;
  std::vector<Tree> items_;  ///< the items of the next chunk
  std::size_t bytes_ = 0, nodes_ = 0;
  std::uint64_t written_ = 0;
};

/// An item file that is open for reading. Thread-safe.
class ItemFile {
 public:
  /// Reads and validates the index. Throws SourceError that names the file.
  explicit ItemFile(std::unique_ptr<File> file);

  const std::string& origin() const { return contents_.origin; }
  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  struct Items {
    std::int64_t first = 0;  ///< number of the first one
    std::vector<Tree> items;
  };
  /// Returns the chunk that contains item `number`, which must exist. Its tensors are writable. Throws SourceError.
  Items read(std::int64_t number) const;

 private:
  [[noreturn]] void fail(std::string_view what) const;

  std::unique_ptr<File> file_;
  ItemFileContents contents_;
  std::vector<std::int64_t> ends_;  ///< per chunk, the number of items up to its end
};

}  // namespace levada::pipeline
