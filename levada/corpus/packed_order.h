// The order of packed samples, in memory or in a file.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/base/atomic_file.h"
#include "levada/base/memory_limits.h"
#include "levada/base/private_files.h"
#include "levada/base/unique_fd.h"

namespace levada {

struct PackingOptions {
  std::int64_t sequence = 1;  ///< positions of a sample; a multiple of pad_to
  std::int64_t pad_to = 1;    ///< pieces are rounded up to multiples of it
  /// Maximum number of pieces in a sample. If it is 1, samples are the documents and pieces of documents in storage
  /// order.
  std::int64_t max_pieces = std::numeric_limits<std::int64_t>::max();

  /// Returns the positions of a piece including its padding.
  std::int64_t rounded(std::int64_t positions) const { return (positions + pad_to - 1) / pad_to * pad_to; }
};

/// The documents of a source. Documents without inputs, which some formats allow, are in no sample.
struct PackedDocuments {
  std::int64_t documents = 0, tokens = 0;
  /// Calls its argument with the number of tokens of each document, including its end.
  std::function<void(const std::function<void(std::int64_t tokens)>&)> visit;
};

/// A document, or a part of one, in a packed sample: `positions` inputs, the first of which is token `begin` of the
/// source.
struct PackedPiece {
  std::int64_t begin = 0, positions = 0;
  bool operator==(const PackedPiece&) const = default;
};

/// The samples into which documents are packed, as defined in docs/design/corpus.md: 12 bytes per piece and 4 per
/// sample, in memory or in a file. Windows of consecutive documents are packed independently, each into one block of
/// bytes, and only a table of the blocks is always in memory. Thread-safe.
class PackedOrder {
 public:
  /// Number of documents that are packed together.
  static constexpr std::int64_t window = 16384;
  /// Identifies the order in cursors. Must change with the algorithm.
  static constexpr int version = 1;

  /// Keeps the order in memory. Throws InvalidArgument if `limits` leave too little for it.
  PackedOrder(
      const PackingOptions& options, const PackedDocuments& documents,
      const std::function<MemoryLimits()>& limits = [] { return memory_limits(); });

  /// Writes the order to `file`. `key` identifies the documents and the options.
  static void write(AtomicFile& file, const std::string& key, const PackingOptions& options,
                    const PackedDocuments& documents);
  /// Opens a file that write() has written; it may be removed afterwards. Returns nothing for a file that is missing,
  /// untrusted, damaged or of another key.
  static std::optional<PackedOrder> open(const std::string& path, const FolderTrust& trust, const std::string& key,
                                         const PackingOptions& options);

  /// Returns an upper bound on the size of the order.
  static std::uint64_t max_bytes(const PackingOptions& options, const PackedDocuments& documents);

  std::int64_t size() const { return table_.samples; }
  /// Returns the number of positions with a label in all samples.
  std::int64_t positions() const { return table_.positions; }
  /// Returns the maximum number of segments in a sample: its pieces, and any padding at its end.
  std::int64_t max_segments() const { return table_.max_segments; }
  /// Returns the pieces of a sample in storage order. Throws SourceError if the file is damaged or cannot be read.
  std::vector<PackedPiece> pieces(std::int64_t sample) const;

 private:
  friend class PackedOrderWriter;

  struct Window {
    std::int64_t first_sample = 0;
    std::uint64_t offset = 0;  ///< the start of its block among all blocks
    std::uint64_t digest = 0;  ///< hash64() of its block
  };
  struct Table {
    std::int64_t samples = 0, positions = 0, max_segments = 0;
    std::uint64_t bytes = 0;  ///< size of all blocks
    std::vector<Window> windows;

    std::int64_t samples_of(std::size_t index) const;
    std::uint64_t bytes_of(std::size_t index) const;
    bool is_consistent() const;
  };

  PackedOrder(const PackingOptions& options, Table table, std::string path, UniqueFd file);
  void read(std::size_t index, std::uint64_t from, std::span<std::byte> into) const;
  /// Checks the digest of a block in a file before its first use.
  void verify(std::size_t index) const;
  [[noreturn]] void fail(std::string_view what) const;

  PackingOptions options_;
  Table table_;
  std::vector<Bytes> blocks_;                             ///< if the order is in memory
  std::string path_;                                      ///< otherwise
  UniqueFd file_;                                         ///< otherwise
  std::unique_ptr<std::atomic<bool>[]> are_verified_ {};  ///< by window; only for a file
};

}  // namespace levada
