// The source of each sample in a mix, as arithmetic on numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levada {

/// A source of a mix.
struct MixPart {
  std::string name;                              ///< for messages
  double share = 1;                              ///< share of the samples, relative to the others' shares; above zero
  std::optional<std::int64_t> max_samples = {};  ///< cap on the total number of samples, 1 to Mix::max_samples
};

/// Sample number `number` of a source, counted over all its epochs.
struct MixedSample {
  std::size_t source = 0;
  std::int64_t number = 0;
  bool operator==(const MixedSample&) const = default;
};

/// The order of a mix, by a divisor method of apportionment (M. Balinski, H. Young, "Fair Representation", 1982):
/// sample i of source k has the time (i + phase_k) / share_k, with phases spread evenly over [0, 1), and samples are
/// sorted by time. Among the first g samples, a source without a cap therefore has its share of g to within about one
/// sample, however small the share is. A source that has reached its cap is skipped, and the others take over its share
/// in proportion. Within blocks of 4096 samples a permutation decides the order of the sources; the samples of one
/// source keep their order. The same on every platform. One thread at a time.
class Mix {
 public:
  static constexpr std::int64_t block = 4096;
  /// The largest cap. The sum of all sources' caps fits in 64 bits.
  static constexpr std::int64_t max_samples = std::int64_t{1} << 52;
  /// Identifies the order in cursors. Must change with the algorithm.
  static constexpr int version = 3;

  /// Throws InvalidArgument for a share that is not positive and finite or is less than 1e-9 of the sum, and for a cap
  /// out of range.
  Mix(const std::vector<MixPart>& parts, std::uint64_t seed);

  /// Returns the total number of samples; nothing if the mix is endless.
  std::optional<std::int64_t> size() const { return size_; }
  /// Returns sample `g`. Requires g < size(). Constant time as long as calls stay in a block.
  MixedSample at(std::int64_t g);
  /// Returns the number of samples from each source among samples [0, min(g, size())).
  std::vector<std::int64_t> taken(std::int64_t g) const;

 private:
  struct Part {
    std::uint64_t share = 0;  ///< in units of 2^-36 of all shares
    std::uint64_t phase = 0;  ///< in units of 1/256
    std::optional<std::int64_t> max_samples;
  };
  /// The source of each sample in a block; numbers count over all blocks.
  struct Block {
    std::int64_t number = -1;
    std::vector<MixedSample> samples;
    std::vector<std::int64_t> end;  ///< samples of each source before the end of the block
  };

  std::vector<std::int64_t> counts_before(std::int64_t g) const;
  Block deal(std::int64_t number, std::vector<std::int64_t> counts) const;

  std::uint64_t seed_;
  std::vector<Part> parts_;
  std::optional<std::int64_t> size_;
  Block dealt_;
};

}  // namespace levada
