// Which documents share a sample, as arithmetic on numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "levada/base/memory_limits.h"

namespace levada {

/// The way in which documents become samples.
enum class Packing : std::uint8_t {
  cut,        ///< concatenated and cut
  best_fit,   ///< several whole documents per sample, best fit decreasing
  documents,  ///< one document per sample
};

/// Parses "cut", "best-fit" or "documents". Throws InvalidArgument for another word.
Packing parse_packing(std::string_view word);

/// Items assigned to bins.
struct BinPacking {
  std::vector<std::uint32_t> bin_of;  ///< by item
  std::uint32_t bins = 0;
};

/// Packs items by best fit decreasing: from the largest to the smallest, and among equals from the first to the last,
/// each item goes into the bin with the least sufficient room, the first such bin in case of a tie, or into a new bin
/// if no room suffices. `sizes`: from 1 to `capacity` each. A bin holds at most `max_items` items.
BinPacking pack_best_fit(std::span<const std::int64_t> sizes, std::int64_t capacity,
                         std::int64_t max_items = std::numeric_limits<std::int64_t>::max());

/// A document, or a part of one, in a packed sample: `positions` inputs beginning with its token `from`.
struct PackedPiece {
  std::int64_t document = 0, from = 0, positions = 0;
  bool operator==(const PackedPiece&) const = default;
};

/// The order of packed samples, as defined in docs/design/corpus.md: 4 bytes per document and 16 per sample.
/// Thread-safe.
class PackedOrder {
 public:
  /// Number of documents that are packed together.
  static constexpr std::int64_t window = 16384;
  /// Identifies the order in cursors. Must change with the algorithm.
  static constexpr int version = 1;

  /// `tokens_of` returns the number of tokens in a document, including its end; pieces() calls it again. `sequence`
  /// must be a multiple of `pad_to`; pieces are rounded up to multiples of it. A sample holds at most `max_pieces`; if
  /// that is 1, samples are the documents and pieces of documents in storage order. Throws InvalidArgument for more
  /// than 2^31 documents or samples, and if `limits` leave no memory for the order.
  PackedOrder(
      std::int64_t documents, std::function<std::int64_t(std::int64_t)> tokens_of, std::int64_t sequence,
      std::int64_t pad_to = 1, std::int64_t max_pieces = std::numeric_limits<std::int64_t>::max(),
      const std::function<MemoryLimits()>& limits = [] { return memory_limits(); });

  std::int64_t size() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  /// Returns the number of positions with a label in all samples.
  std::int64_t positions() const { return positions_; }
  /// Returns the maximum number of segments in a sample: its pieces, and any padding at its end.
  std::int64_t max_segments() const { return max_segments_; }

  std::int64_t pieces(std::int64_t sample) const { return begin(sample + 1) - begin(sample); }
  PackedPiece piece(std::int64_t sample, std::int64_t number) const;
  /// Returns the positions of a piece including its padding.
  std::int64_t rounded(std::int64_t positions) const { return (positions + pad_to_ - 1) / pad_to_ * pad_to_; }

 private:
  /// A piece as long as a sample.
  struct WholeSample {
    std::uint32_t document = 0, number = 0;  ///< number of the piece in its document
  };

  std::int64_t begin(std::int64_t sample) const { return begins_[static_cast<std::size_t>(sample)]; }
  /// Returns the number of inputs in a document: 0 for one without tokens, which some formats allow.
  std::int64_t positions_of(std::int64_t document) const { return std::max<std::int64_t>(tokens_of_(document) - 1, 0); }
  void reserve(std::int64_t documents, const std::function<MemoryLimits()>& limits);
  void add_window(std::int64_t first, std::int64_t end);
  void add_sample(std::span<const std::uint32_t> members, std::int64_t length);

  std::function<std::int64_t(std::int64_t)> tokens_of_;
  std::int64_t sequence_, pad_to_, max_pieces_;
  /// The members of all samples, one sample after another. A member is the number of a document, meaning its remainder,
  /// or, with the highest bit set, the index of a WholeSample.
  std::vector<std::uint32_t> members_;
  std::vector<std::int64_t> begins_ = {0};  ///< start of each sample's members, and the end
  std::vector<WholeSample> whole_samples_;
  std::int64_t positions_ = 0, max_segments_ = 0;
};

}  // namespace levada
