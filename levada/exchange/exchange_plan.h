// What has to move so that samples are where they are wanted: a value that says who sends what to whom, the same on
// every rank.
//
// It is levada/plan's idea, source layout x target layout -> moves, in the form that samples need. A Plan's moves are
// regions of the fields of one batch that every audience shares, planned again and again for one structure; here each
// of a million samples has its own size and holders, and is moved once. So a multicast stands where an Audience does, a
// list of (sample, part, keys) where Moves do, sixteen bytes each; texts are made as Plan makes its.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/exchange/sample_directory.h"

namespace levada {

/// Keys of one sample, all of them whole or all of them the same part.
struct ExchangeItem {
  std::uint32_t sample = 0;  ///< in the plan's samples()
  std::uint16_t part = 0;    ///< in the plan's parts(); 0 is whole
  std::uint64_t keys = 0;    ///< bit k: the plan's keys()[k]
  bool operator==(const ExchangeItem&) const = default;
};

/// Hashes of the bytes of samples' keys, by column of a directory and by sample.
using Contents = std::vector<std::vector<std::uint64_t>>;

/// Calls visit(k) for each bit k of an item's keys, ascending.
template <typename Visit>
void for_each_key(std::uint64_t keys, Visit&& visit) {
  for (; keys != 0; keys &= keys - 1) visit(static_cast<std::size_t>(std::countr_zero(keys)));
}

/// Items that one rank sends to a set of ranks: their bytes follow each other without a gap, in this order, those of an
/// item key by key.
struct Multicast {
  int from = 0;
  std::span<const int> to = {};              ///< ascending; never `from`
  std::span<const ExchangeItem> items = {};  ///< ascending by id, then part
  std::uint64_t bytes = 0;                   ///< 0 where all items are empty, for which nothing has to be sent
};

class ExchangePlan {
 public:
  struct Load {
    int rank = -1;
    std::uint64_t bytes = 0;
  };
  struct Edge {
    int from = 0;
    int to = 0;
    std::uint64_t bytes = 0;
    bool operator==(const Edge&) const = default;
  };

  /// What the planner fills in. `items` of a multicast follow those of the one before.
  struct Row {
    int from = 0;
    std::uint32_t to = 0;   ///< a list of receivers
    std::uint64_t end = 0;  ///< of its items
    std::uint64_t bytes = 0;
  };
  struct Content {
    SampleDirectory samples;
    std::vector<std::uint16_t> keys;  ///< columns of `samples`
    std::vector<SequencePart> parts{{}};
    std::vector<std::vector<int>> receivers;
    std::vector<Row> rows;
    std::vector<ExchangeItem> items;
    std::uint64_t lower_bound_bytes = 0;

    /// Empty where they are 2^64 or more, which is no plan: no sum of bytes is beyond them.
    std::optional<std::uint64_t> delivered_bytes() const;
  };
  ExchangePlan() = default;
  explicit ExchangePlan(Content content) : content_(std::move(content)) {}

  /// Ordered by sender, then by receivers; at most one a sender and set of receivers. Spans live as long as the plan.
  std::size_t size() const { return content_.rows.size(); }
  Multicast operator[](std::size_t multicast) const;

  /// The table that the plan was made from: ids, keys, lengths, values and holders of what it moves, perhaps of more.
  const SampleDirectory& samples() const { return content_.samples; }
  /// Columns of samples(), such as an item's bits name; no_key for one that nobody has.
  std::span<const std::uint16_t> keys() const { return content_.keys; }
  static constexpr std::uint16_t no_key = UINT16_MAX;
  std::span<const SequencePart> parts() const { return content_.parts; }

  /// Bytes that leave their senders, each multicast counted once.
  std::uint64_t moved_bytes() const;
  /// What no plan can be below that sends an item to no host that has it: the bytes of each item that some ranks want
  /// and lack, once for each host that has both such ranks and the item, and at least once.
  std::uint64_t lower_bound_bytes() const { return content_.lower_bound_bytes; }
  /// Bytes that arrive, counted at each rank.
  std::uint64_t delivered_bytes() const { return content_.delivered_bytes().value_or(0); }
  /// The rank that sends most, the lowest of those; rank -1 where nothing moves.
  Load busiest() const;
  /// What arrives at each rank from each other, ascending.
  std::vector<Edge> edges() const;
  /// Ranks that send or receive, ascending.
  std::vector<int> ranks() const;

  /// For people: one row a multicast, the bytes on each edge, then the sums.
  std::string to_table() const;
  /// One JSON object: multicasts [{from, to, samples, keys, parts, bytes, ids}] (ids as far as `with_ids` says),
  /// moved_bytes, lower_bound_bytes, delivered_bytes, busiest {rank, bytes}, edges [{from, to, bytes}].
  std::string to_json(bool with_ids = false) const;
  /// As it moves, whatever else samples() knows, and however samples are numbered.
  bool operator==(const ExchangePlan& other) const;

 private:
  Content content_;
};

}  // namespace levada
