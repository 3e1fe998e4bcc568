// One rank's part of a plan: its rows, as rank 0 distributes them. Private to this module.
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
  std::vector<RankRange> to = {};  ///< empty if each rank sends to all others
  std::uint64_t bytes = 0;
  std::uint64_t begin = 0;  ///< offset of its bytes among those of all rows of `from`
  std::size_t first_item = 0, end_item = 0;
  std::size_t first_entry = 0, end_entry = 0;  ///< range of its items' keys among all keys of all items

  std::vector<int> receivers() const;
};

/// The rows of one rank, in the order of the plan and with its sample numbers.
struct ExchangeRows {
  std::vector<SampleKey> keys;  ///< by an item's bit; a key that no rank holds has no name
  std::vector<SequencePart> parts;
  std::vector<ExchangeRow> rows;
  std::vector<ExchangeItem> items;
  Seqlens lengths;                              ///< lengths of whole sequences, by entry
  std::vector<std::uint64_t> sizes;             ///< bytes that move, by entry
  std::vector<std::uint64_t> contents;          ///< hash of the whole sequences' bytes, by entry
  std::map<std::uint32_t, PlainValues> values;  ///< by sample, for samples that this rank receives
  std::vector<std::uint64_t> sent_by;           ///< bytes of all rows of each rank, if it sends to all others

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

/// Returns the rows of each of `ranks` ranks as bytes that follow `before`; ranks with the same rows may share them.
/// `to_all`: each rank sends to all others on one channel, so rows have sent_by instead of receivers. `contents`:
/// hashes of the plan's samples; if empty, all are 0.
std::vector<std::shared_ptr<const Bytes>> encode_rows(const ExchangePlan& plan, int ranks, bool to_all,
                                                      ByteView before = {}, const Contents& contents = {});

/// Decodes untrusted bytes. Throws CorruptMessage unless they are rows of `rank`, one of `ranks`, with samples below
/// `samples`, encoded with the same `to_all`.
ExchangeRows decode_rows(ByteView bytes, int rank, int ranks, std::size_t samples, bool to_all);

}  // namespace levada
