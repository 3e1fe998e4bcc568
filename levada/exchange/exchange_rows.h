// What one rank has to do of a plan: its rows, as rank 0 hands them out. For this module's sources alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "levada/exchange/exchange_plan.h"

namespace levada {

/// Ranks [begin, end).
struct RankRange {
  std::int32_t begin = 0, end = 0;
};

/// A multicast that this rank sends or receives.
struct ExchangeRow {
  int from = 0;
  std::vector<RankRange> to = {};  ///< none where each rank sends to all others
  std::uint64_t bytes = 0;
  std::uint64_t begin = 0;  ///< where its bytes begin among those of all rows of `from`
  std::size_t first_item = 0, end_item = 0;
  std::size_t first_entry = 0, end_entry = 0;  ///< numbers of its items' keys among all keys of all items

  std::vector<int> receivers() const;
};

/// The rows of one rank, ordered as in the plan. Samples have the numbers that they have there.
struct ExchangeRows {
  std::vector<SampleKey> keys;  ///< by an item's bit; one that nobody has is without a name
  std::vector<SequencePart> parts;
  std::vector<ExchangeRow> rows;
  std::vector<ExchangeItem> items;
  Seqlens lengths;                              ///< by entry, of whole sequences
  std::vector<std::uint64_t> sizes;             ///< by entry, its bytes as it moves
  std::vector<std::uint64_t> contents;          ///< by entry, a hash of the whole sequences' bytes
  std::map<std::uint32_t, PlainValues> values;  ///< by sample, of those that come
  std::vector<std::uint64_t> sent_by;           ///< each rank's bytes in all its rows, where it sends to all others

  std::span<const std::uint64_t> sizes_of(const ExchangeRow& row) const {
    return std::span(sizes).subspan(row.first_entry, row.end_entry - row.first_entry);
  }

  /// Calls visit(item, key, entry) for each key of each of a row's items, in the order in which they move.
  template <typename Visit>
  void for_each_entry(const ExchangeRow& row, Visit&& visit) const {
    std::size_t entry = row.first_entry;
    for (std::size_t i = row.first_item; i < row.end_item; ++i) {
      for_each_key(items[i].keys, [&](std::size_t key) { visit(items[i], key, entry++); });
    }
  }
};

/// Returns the rows of each of `ranks` ranks as bytes, behind `before`; ranks with the same rows may share them.
/// `to_all`: each rank sends to all others on one channel, so rows come with sent_by and without receivers. `contents`:
/// those of the plan's samples; none: 0 for each.
std::vector<std::shared_ptr<const Bytes>> encode_rows(const ExchangePlan& plan, int ranks, bool to_all,
                                                      ByteView before = {}, const Contents& contents = {});

/// Reads bytes that may lie: throws CorruptMessage unless they are rows of `rank`, one of `ranks`, with samples below
/// `samples`, encoded with the same `to_all`.
ExchangeRows decode_rows(ByteView bytes, int rank, int ranks, std::size_t samples, bool to_all);

}  // namespace levada
