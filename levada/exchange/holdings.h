// The holdings that ranks send before an exchange: which of the requested samples and keys each rank has. Private to
// this module.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levada/exchange/planner.h"
#include "levada/exchange/sample_index.h"
#include "levada/exchange/store.h"

namespace levada {

/// The requested samples that a store holds.
struct Holdings {
  /// A sample's numbers in the index and in the store.
  struct Sample {
    std::uint32_t number = 0, row = 0;
  };
  /// To be sent: samples with any of the keys and hashes of their contents, samples without, and the values of all.
  Bytes bytes;
  std::vector<Sample> samples;  ///< ascending by number
  std::uint64_t version = 0;    ///< of the store, for which the rows hold
};
/// `last`: perhaps the samples; where they are, at these places, and the store has no others, none is looked up.
Holdings holdings_of(const SampleStore& store, const SampleIndex& index, std::span<const std::string> keys,
                     std::span<const Holdings::Sample> last = {});

/// Merges the holdings of all ranks into a table whose samples are numbered as in the index. Borrows the index.
class HoldingsTable {
 public:
  HoldingsTable(const SampleIndex& index, std::span<const std::string> keys)
      : HoldingsTable(index, keys, ids_of(index)) {}
  /// `ids`: ids_of() the index, made before.
  HoldingsTable(const SampleIndex& index, std::span<const std::string> keys, SampleDirectory ids);
  /// Returns a directory of the index's samples, which nobody holds.
  static SampleDirectory ids_of(const SampleIndex& index);

  /// Once a rank, in ascending order of ranks. Bytes that may lie: throws CorruptMessage, and InvalidArgument as
  /// SampleDirectory::merge() does, or where ranks hold different contents of one sample's key; of no use then. No
  /// bytes are no holdings.
  void add(int rank, ByteView bytes);
  /// The numbers that were requested, with no_sample for those of samples that nobody holds.
  std::vector<std::uint32_t> requested() const;
  SampleDirectory take() &&;
  /// By the directory's number of a key, then by sample; 0 for one that nobody holds. Stays here after take().
  const Contents& contents() const { return contents_; }

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
    std::uint32_t answer_ = 0;  ///< of the last lookup: neighbors mostly repeat it
  };
  /// Puts the table's own sets in the place of these; nothing can be added afterwards.
  void number_sets();
  void add_column(int rank, const Column& column);
  void add_values(int rank, std::uint32_t sample, PlainValues values);
  [[noreturn]] void refuse_content(int rank, std::size_t sample, std::size_t key);

  const SampleIndex& index_;
  std::span<const std::string> keys_;
  SampleDirectory directory_;
  HolderSets sets_;  ///< of the table's cells, until number_sets()
  Contents contents_;
  std::vector<int> last_holder_;                          ///< the last rank that has it, by sample; -1: none
  std::vector<std::pair<std::uint32_t, int>> valued_by_;  ///< samples, and ranks that have values of them
};

}  // namespace levada
