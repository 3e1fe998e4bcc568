// The requested ids of an exchange, with the same numbers on all ranks. Private to this module.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "levada/exchange/destinations.h"

namespace levada {

/// The ids of all destinations that have ranks, each once. They are numbered in ascending order, independently of the
/// order of the request, so numbers can be sent in place of ids. Keeps the destinations.
class SampleIndex {
 public:
  /// Throws InvalidArgument for 2^32 - 1 ids or more.
  explicit SampleIndex(std::vector<Destination> destinations);
  SampleIndex(const SampleIndex&) = delete;
  SampleIndex& operator=(const SampleIndex&) = delete;

  std::size_t size() const { return samples_.size(); }
  std::string_view id(std::size_t sample) const { return samples_[sample].id; }
  /// Returns hash64() of the id.
  std::uint64_t hash(std::size_t sample) const { return samples_[sample].hash; }
  /// Finds the number of an id by binary search.
  std::optional<std::uint32_t> find(std::string_view id) const;
  const std::vector<Destination>& destinations() const { return destinations_; }
  /// Returns the numbers of all ids of the destinations that have ranks, one after another.
  std::span<const std::uint32_t> requested() const { return requested_; }
  /// Returns a hash of the destinations, independent of their order and of the order of ranks and ids.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Sample {
    std::string_view id;
    std::uint64_t hash = 0;
    std::uint64_t prefix = 0;
    std::uint32_t place = 0;  ///< in requested_
  };
  void number_samples();

  std::vector<Destination> destinations_;
  std::vector<Sample> samples_;
  std::vector<std::uint32_t> requested_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace levada
