// The cost of a sample in a training step, known before the sample is read.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace levada {

/// The size of a sample, which is one segment of a packed row, or a row of several segments.
struct SampleSize {
  std::int64_t tokens = 0;                   ///< positions in a row, including the padding of its segments
  std::int64_t squares = 0;                  ///< sum of the squares of its segments' positions: the cost of attention
  std::array<std::int64_t, 2> weights = {};  ///< from the user, only for SampleCost::Kind::weights
  std::int64_t padding = 0;                  ///< padding among the tokens
  bool operator==(const SampleSize&) const = default;
};

/// The work of one sample, in units of its model. `second` is the work of another part of the model, such as an
/// encoder: ranks are balanced in both, by the worse of the two.
struct Work {
  std::int64_t first = 0, second = 0;
  bool operator==(const Work&) const = default;
};

/// Computes the work of a sample from its size.
struct SampleCost {
  enum class Kind : std::uint8_t {
    tokens,   ///< one per position
    flops,    ///< linear * L + quadratic * L * L for each segment of L positions
    weights,  ///< as given by the user
  };
  Kind kind = Kind::tokens;
  std::int64_t linear = 0, quadratic = 0;  ///< coefficients of flops
  bool operator==(const SampleCost&) const = default;

  /// Accepts "tokens"; "flops" for a model of hidden size 4096; "flops(hidden=8192)";
  /// "flops(linear=24576,quadratic=1)"; "weights". A transformer layer of hidden size h does 24 h h L + 4 h L L
  /// operations forward (D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021),
  /// in proportion to 6 h L + L L. Throws InvalidArgument, listing the accepted forms.
  static SampleCost parse(std::string_view text);
  /// Returns text that parse() accepts.
  std::string to_string() const;

  /// Returns the work of one sample. Throws InvalidArgument if it is negative or does not fit in 62 bits.
  Work of(const SampleSize& size) const;
};

}  // namespace levada
