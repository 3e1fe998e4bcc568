// What ranks tell each other before an exchange: which of the samples asked for each of them holds, and what of them.
// For this module's sources alone.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/exchange/destinations.h"
#include "levada/exchange/store.h"

namespace levada {

/// The ids that somebody is to have, each once, ascending: numbered alike by all ranks that ask for the same, whatever
/// the order in which they ask, so that ids need not travel. Borrows the request.
class RequestedSamples {
 public:
  explicit RequestedSamples(const ExchangeRequest& request);

  std::size_t size() const { return samples_.size(); }
  std::string_view id(std::size_t sample) const { return samples_[sample].id; }
  std::uint64_t hash(std::size_t sample) const { return samples_[sample].hash; }
  /// The numbers of all ids of those destinations that have ranks, one after the other.
  std::span<const std::uint32_t> asked() const { return asked_; }
  /// Of the request: the same whatever the order of destinations, ranks and ids.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Sample {
    std::string_view id;
    std::uint64_t hash = 0;
    std::uint64_t prefix = 0;
    std::uint32_t place = 0;  ///< in asked_
  };
  void number_samples();

  std::vector<Sample> samples_;
  std::vector<std::uint32_t> asked_;
  std::uint64_t fingerprint_ = 0;
};

/// What a store holds of them, as bytes that travel: the samples with any of `keys`, those without, and the values of
/// all.
Bytes encode_claims(const SampleStore& store, const RequestedSamples& requested, std::span<const std::string> keys);

/// What ranks claim, put together. Samples have their numbers among those requested; one that nobody claims, or of
/// which nobody has any of the keys, is there without holders. Borrows what was requested.
class Claims {
 public:
  Claims(const RequestedSamples& requested, std::span<const std::string> keys);

  /// Once a rank, in ascending order of ranks. Bytes that may lie: throws CorruptMessage, and InvalidArgument as
  /// Ownership::merge() does; of no use then. No bytes are no claims.
  void add(int rank, ByteView bytes);
  /// The numbers that were asked for, with no_sample for those of samples that nobody claims.
  std::vector<std::uint32_t> asked() const;
  Ownership take() &&;

 private:
  struct Column;
  /// Sets of holders, by number; 0 is nobody. As ranks come in ascending order, each set is an earlier one and one more
  /// holder, and takes no memory for those that it shares with that.
  class HolderSets {
   public:
    std::uint32_t with(std::uint32_t set, const Holder& holder);
    Holders holders(std::uint32_t set) const;
    std::size_t size() const { return sets_.size(); }

   private:
    using Grown = std::pair<std::uint32_t, Holder>;
    std::vector<Grown> sets_{{}};
    std::map<Grown, std::uint32_t> numbers_;
    Grown asked_{};
    std::uint32_t answer_ = 0;  ///< to what was asked last: neighbours mostly ask alike
  };
  /// Puts the table's own sets in the place of these; nothing can be added afterwards.
  void number_sets();
  /// A copy whose table has its own sets, for errors that name holders.
  Claims numbered() const;
  void add_column(int rank, const Column& column);
  void add_values(int rank, std::uint32_t sample, PlainValues values);

  const RequestedSamples& requested_;
  std::span<const std::string> keys_;
  Ownership ownership_;
  HolderSets sets_;                                       ///< of the table's cells, until number_sets()
  std::vector<int> claimed_by_;                           ///< the last rank that did, by sample; -1: none
  std::vector<std::pair<std::uint32_t, int>> valued_by_;  ///< samples, and ranks that have values of them
};

}  // namespace levada
