// A mix whose shares change at certain samples, as arithmetic on numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "levada/order/mix.h"

namespace levada {

/// A sequence of Mixes. Each replaces the previous one from a certain sample on, within the remainder of the sources'
/// caps. Used by one thread at a time.
class MixSchedule {
 public:
  /// Throws as Mix does.
  MixSchedule(std::vector<MixPart> parts, std::uint64_t seed);

  /// Changes the sources' shares from sample `first` on, which must not be before the last change. Throws as Mix does.
  void change(std::int64_t first, const std::vector<double>& shares);

  /// The following functions are as in Mix.
  std::optional<std::int64_t> size() const;
  MixedSample at(std::int64_t g);
  std::vector<std::int64_t> taken(std::int64_t g) const;

 private:
  struct Phase {
    std::int64_t first = 0;
    std::vector<std::int64_t> given;   ///< number of samples of each source before `first`
    std::vector<std::size_t> sources;  ///< sources that have not reached their caps
    Mix mix;                           ///< mix of these sources
  };

  std::size_t phase_of(std::int64_t g) const;

  std::vector<MixPart> parts_;
  std::uint64_t seed_;
  std::vector<Phase> phases_;
};

}  // namespace levada
