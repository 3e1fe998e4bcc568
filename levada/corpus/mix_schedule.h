// A mix whose shares change at certain samples: numbers alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "levada/order/mix.h"

namespace levada {

/// A Mix that other mixes replace from certain samples on, each over what is left of the sources' caps. One thread at a
/// time.
class MixSchedule {
 public:
  /// Throws as Mix does.
  MixSchedule(std::vector<MixPart> parts, std::uint64_t seed);

  /// From sample `first` on, which is not before the last change, the sources have these shares. Throws as Mix does.
  void change(std::int64_t first, const std::vector<double>& shares);

  /// As Mix has them.
  std::optional<std::int64_t> size() const;
  MixedSample at(std::int64_t g);
  std::vector<std::int64_t> taken(std::int64_t g) const;

 private:
  struct Phase {
    std::int64_t first = 0;
    std::vector<std::int64_t> given;   ///< samples of each source before `first`
    std::vector<std::size_t> sources;  ///< those that have not reached their caps
    Mix mix;                           ///< of them
  };

  std::size_t phase_of(std::int64_t g) const;

  std::vector<MixPart> parts_;
  std::uint64_t seed_;
  std::vector<Phase> phases_;
};

}  // namespace levada
