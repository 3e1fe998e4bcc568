// The moves of an exchange: which rank sends which samples to which ranks. A plan is a value and is the same on every
// rank.
//
// The idea is that of levada/plan (source layout x target layout -> moves), adapted to samples. A Plan moves regions of
// the fields of one batch, which all audiences share, and is reused for every batch of the same structure. Here, each
// of a million samples has its own size and holders, and moves once. A Multicast therefore replaces an Audience, and a
// list of (sample, part, keys), sixteen bytes each, replaces Moves. Texts are formatted as in Plan.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/exchange/sample_directory.h"

namespace levada {

/// Keys of one sample: all of them whole, or the same part of each.
struct ExchangeItem {
  std::uint32_t sample = 0;  ///< index into the plan's samples()
  std::uint16_t part = 0;    ///< index into the plan's parts(); 0 is whole
  std::uint64_t keys = 0;    ///< bit k: the plan's keys()[k]
  bool operator==(const ExchangeItem&) const = default;
};

/// Hashes of the bytes of samples' keys, by column of a directory, then by sample.
using Contents = std::vector<std::vector<std::uint64_t>>;

/// Calls visit(k) for each bit k of an item's keys, ascending.
template <typename Visit>
void for_each_key(std::uint64_t keys, Visit&& visit) {
  for (; keys != 0; keys &= keys - 1) visit(static_cast<std::size_t>(std::countr_zero(keys)));
}

/// Items that one rank sends to a set of ranks. Their bytes are concatenated in this order without gaps, and an item's
/// bytes key by key.
struct Multicast {
  int from = 0;
  std::span<const int> to = {};              ///< ascending; never `from`
  std::span<const ExchangeItem> items = {};  ///< ascending by id, then part
  std::uint64_t bytes = 0;                   ///< 0 if all items are empty, in which case no message is sent
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

  /// A multicast in the planner's output. Its items begin where those of the previous row end.
  struct Row {
    int from = 0;
    std::uint32_t to = 0;   ///< index into the lists of receivers
    std::uint64_t end = 0;  ///< end of its items
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

    /// Returns the total bytes that arrive at all ranks, or nothing if they are 2^64 or more, which is invalid. No
    /// other sum of bytes in the plan exceeds this one.
    std::optional<std::uint64_t> delivered_bytes() const;
  };
  ExchangePlan() = default;
  explicit ExchangePlan(Content content) : content_(std::move(content)) {}

  /// Multicasts are ordered by sender, then by receivers; a sender has at most one per set of receivers. Spans live as
  /// long as the plan.
  std::size_t size() const { return content_.rows.size(); }
  Multicast operator[](std::size_t multicast) const;

  /// Returns the table that the plan was made from: ids, keys, lengths, values and holders of the samples that move,
  /// and possibly of others.
  const SampleDirectory& samples() const { return content_.samples; }
  /// Returns the columns of samples() that an item's bits refer to; no_key for a key that no rank holds.
  std::span<const std::uint16_t> keys() const { return content_.keys; }
  static constexpr std::uint16_t no_key = UINT16_MAX;
  std::span<const SequencePart> parts() const { return content_.parts; }

  /// Returns the bytes sent. Each multicast counts once.
  std::uint64_t moved_bytes() const;
  /// Returns a lower bound on moved_bytes() of any plan that never sends an item to a host that holds it: for each item
  /// that some ranks want and lack, its bytes times the number of hosts that have both such ranks and the item, or
  /// times one if no host has both.
  std::uint64_t lower_bound_bytes() const { return content_.lower_bound_bytes; }
  /// Returns the bytes received. Each multicast counts once per receiver.
  std::uint64_t delivered_bytes() const { return content_.delivered_bytes().value_or(0); }
  /// Returns the rank that sends the most bytes, the lowest such rank in a tie; rank -1 if nothing moves.
  Load busiest() const;
  /// Returns the bytes that each rank sends to each other rank, ascending by sender, then receiver.
  std::vector<Edge> edges() const;
  /// Returns the ranks that send or receive, ascending.
  std::vector<int> ranks() const;

  /// Returns a readable table: one row per multicast, then the bytes on each edge, then the sums.
  std::string to_table() const;
  /// Returns one JSON object: multicasts [{from, to, samples, keys, parts, bytes, ids}] (with ids only if `with_ids`),
  /// moved_bytes, lower_bound_bytes, delivered_bytes, busiest {rank, bytes}, edges [{from, to, bytes}].
  std::string to_json(bool with_ids = false) const;
  /// Compares what moves, regardless of what else samples() contains and of how samples are numbered.
  bool operator==(const ExchangePlan& other) const;

 private:
  Content content_;
};

}  // namespace levada
