// Which source gives which sample of a mix: numbers alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levada {

/// One source's part in a mix.
struct MixPart {
  std::string name;                       ///< for messages
  double share = 1;                       ///< of the samples, in proportion to the others' shares; above zero
  std::optional<std::int64_t> most = {};  ///< samples that it gives in all; 1 to Mix::most_samples
};

/// A source's own sample number `number`, counted over all its epochs.
struct MixedSample {
  std::size_t source = 0;
  std::int64_t number = 0;
  bool operator==(const MixedSample&) const = default;
};

/// Deals the slots of a mix in blocks: each source has a fixed number of a block's slots, its share of them by largest
/// remainder but at least one, and a permutation of the block picks which. A source takes its own samples in their
/// order. One that has given its most is dealt no more, and the others share its slots in proportion; its last block is
/// dealt so that it gives exactly that. The same on every platform. One thread at a time.
class Mix {
 public:
  static constexpr std::int64_t block = 4096;
  /// The largest cap. The caps of all sources together can be counted in 64 bits.
  static constexpr std::int64_t most_samples = std::int64_t{1} << 52;
  /// Names the order in cursors: to be changed with the algorithm.
  static constexpr int version = 2;

  /// Throws InvalidArgument for parts that cannot be mixed: shares that are no positive numbers, or less than half a
  /// slot of a block; caps that are none.
  Mix(const std::vector<MixPart>& parts, std::uint64_t seed);

  /// Samples in all; empty without end.
  std::optional<std::int64_t> size() const { return size_; }
  /// Sample `g`, less than size(). In constant time while calls stay in a block.
  MixedSample at(std::int64_t g);
  /// How many of samples [0, g) each source gives; of those that there are.
  std::vector<std::int64_t> taken(std::int64_t g) const;

 private:
  /// Blocks that are dealt alike, up to the next segment.
  struct Segment {
    std::int64_t first_block = 0;
    std::vector<std::int64_t> quotas;  ///< slots of each source in a block
    std::vector<std::int64_t> before;  ///< samples that each source gives before
  };

  const Segment& segment_of(std::int64_t block_number) const;
  /// Who has each slot of a block: numbers count from the block's first.
  std::vector<MixedSample> deal(std::int64_t block_number) const;

  std::uint64_t seed_;
  std::vector<Segment> segments_;
  std::optional<std::int64_t> size_;
  std::vector<MixedSample> dealt_;  ///< of dealt_block_
  std::int64_t dealt_block_ = -1;
};

}  // namespace levada
