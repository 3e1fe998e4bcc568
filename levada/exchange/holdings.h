// The holdings that ranks report before an exchange: the requested samples and keys that each rank has. Private to this
// module.
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
  /// A sample's number in the index and in the store.
  struct Sample {
    std::uint32_t number = 0, row = 0;
  };
  /// The message: samples with any of the keys and hashes of their contents, samples without any, and the values of
  /// all.
  Bytes bytes;
  std::vector<Sample> samples;  ///< ascending by number
  std::uint64_t version = 0;    ///< version of the store for which the rows are valid
};
/// Returns the store's holdings of the index's samples and of `keys`. `last` is a guess at the samples: if the store
/// has exactly these in these rows, none is looked up.
Holdings holdings_of(const SampleStore& store, const SampleIndex& index, std::span<const std::string> keys,
                     std::span<const Holdings::Sample> last = {});

/// Merges the holdings of all ranks into a table whose samples are numbered as in the index. Borrows the index.
class HoldingsTable {
 public:
  HoldingsTable(const SampleIndex& index, std::span<const std::string> keys)
      : HoldingsTable(index, keys, ids_of(index)) {}
  /// `ids`: the result of ids_of() for this index.
  HoldingsTable(const SampleIndex& index, std::span<const std::string> keys, SampleDirectory ids);
  /// Returns a directory of the index's samples, without holders.
  static SampleDirectory ids_of(const SampleIndex& index);

  /// Adds one rank's holdings; called once per rank, in ascending order of ranks. Bytes are untrusted: throws
  /// CorruptMessage if they are malformed, and InvalidArgument as SampleDirectory::merge() does or if ranks hold
  /// different contents of one sample's key. The table is unusable after an exception. Empty bytes mean no holdings.
  void add(int rank, ByteView bytes);
  /// Returns the numbers that were requested, with no_sample in place of samples that no rank holds.
  std::vector<std::uint32_t> requested() const;
  SampleDirectory take() &&;
  /// Returns content hashes, by the directory's key number, then by sample; 0 if no rank holds the key. Valid even
  /// after take().
  const Contents& contents() const { return contents_; }

 private:
  struct Column;
  /// Sets of holders, by number; 0 is the empty set. Because ranks are added in ascending order, each set is an earlier
  /// one plus one holder, and only that holder takes memory.
  class HolderSets {
   public:
    std::uint32_t add_holder(std::uint32_t set, const Holder& holder);
    Holders holders(std::uint32_t set) const;
    std::size_t size() const { return sets_.size(); }

   private:
    using Grown = std::pair<std::uint32_t, Holder>;
    std::vector<Grown> sets_{{}};
    std::map<Grown, std::uint32_t> numbers_;
    Grown asked_{};
    std::uint32_t answer_ = 0;  ///< result of the last lookup, which neighboring samples mostly repeat
  };
  /// Replaces the numbers of these sets with the directory's. Nothing can be added afterwards.
  void number_sets();
  void add_column(int rank, const Column& column);
  void add_values(int rank, std::uint32_t sample, PlainValues values);
  [[noreturn]] void throw_content_differs(int rank, std::size_t sample, std::size_t key);

  const SampleIndex& index_;
  std::span<const std::string> keys_;
  SampleDirectory directory_;
  HolderSets sets_;  ///< sets in the directory's cells, until number_sets()
  Contents contents_;
  std::vector<int> last_holder_;                          ///< by sample, the last rank that holds it; -1 if none does
  std::vector<std::pair<std::uint32_t, int>> valued_by_;  ///< samples, and the ranks that have values for them
};

}  // namespace levada
