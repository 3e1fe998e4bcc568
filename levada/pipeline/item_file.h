// Items in a file: written once from front to back, then read from any item on.
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

/// What an item file holds. The file is the chunks, each a message (tree/codec.h) of a list of items, from multiples of
/// 64 on; then this, encoded; then 24 bytes: the magic number (8), the bytes of this (8) and their XXH3-64 (8).
struct ItemFileContents {
  struct Chunk {
    std::uint64_t offset = 0, bytes = 0;
    std::int64_t items = 0;
    std::uint64_t hash = 0;  ///< XXH3-64
    static auto fields(auto& self) { return std::tie(self.offset, self.bytes, self.items, self.hash); }
  };
  std::string origin;  ///< what made the items, for people and to compare
  std::vector<Chunk> chunks;
  static auto fields(auto& self) { return std::tie(self.origin, self.chunks); }
};

/// Writes an item file. Destroyed before finish(), it leaves nothing. One thread at a time.
class ItemFileWriter {
 public:
  /// Throws FileBusy if another process writes this file, and SourceError if it cannot be made. `mode`: of the
  /// AtomicFile.
  ItemFileWriter(std::string path, std::string origin, mode_t mode = private_mode);

  /// Copies `item`. Throws InvalidArgument for one that does not fit a message, SourceError for a full disk.
  void add(const Tree& item);
  /// Gives the file its name: from then on it is there, and whole.
  void finish();

 private:
  void write_chunk();

  AtomicFile file_;
  ItemFileContents contents_;
  std::vector<Tree> items_;  ///< of the next chunk
  std::size_t bytes_ = 0, nodes_ = 0;
  std::uint64_t written_ = 0;
};

/// An item file that is open for reading. Any thread.
class ItemFile {
 public:
  /// Checks what it says of itself. Throws SourceError that names the file.
  explicit ItemFile(std::unique_ptr<File> file);

  const std::string& origin() const { return contents_.origin; }
  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  struct Items {
    std::int64_t first = 0;  ///< the number of the first one
    std::vector<Tree> items;
  };
  /// The chunk that has item `number`, which there is. Its tensors may be written to. Throws SourceError.
  Items read(std::int64_t number) const;

 private:
  [[noreturn]] void refuse(std::string_view what) const;

  std::unique_ptr<File> file_;
  ItemFileContents contents_;
  std::vector<std::int64_t> ends_;  ///< by chunk, the number of items up to its end
};

}  // namespace levada::pipeline
