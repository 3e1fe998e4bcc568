// How long the sequences of each item are: the ragged dimension of a field, kept small.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace levada {

/// For each item the lengths of its sequences, in tokens (rows); an item may have none of them, or be absent. A value.
/// Where every item has exactly one sequence, as most fields have, it is one vector of lengths and nothing else.
class Seqlens {
 public:
  Seqlens() = default;
  /// One sequence an item. Throws InvalidArgument for a negative length, naming the item.
  static Seqlens one_each(std::vector<std::int64_t> lengths);
  /// Any number of sequences an item; nothing for an item that is absent. Throws as above.
  static Seqlens of(const std::vector<std::optional<std::vector<std::int64_t>>>& items);

  std::size_t size() const { return ends_.empty() ? lengths_.size() : ends_.size(); }
  bool has(std::size_t item) const { return absent_.empty() || !absent_[item]; }
  /// The lengths of an item's sequences; none for an absent item. Valid until this changes or goes.
  std::span<const std::int64_t> operator[](std::size_t item) const {
    if (ends_.empty()) return std::span(lengths_).subspan(item, 1);
    const std::size_t begin = item == 0 ? 0 : ends_[item - 1];
    return std::span(lengths_).subspan(begin, ends_[item] - begin);
  }
  /// Tokens of an item: the sum of its lengths, 0 for an absent one.
  std::int64_t total(std::size_t item) const;

  /// One more item. Throws InvalidArgument for a negative length, or lengths that together do not fit 63 bits.
  void push_back(std::span<const std::int64_t> lengths);
  void push_absent();
  void reserve(std::size_t items) { lengths_.reserve(items); }

  bool operator==(const Seqlens& other) const;

 private:
  /// Makes room for items that have not exactly one sequence.
  void spell_out();

  std::vector<std::int64_t> lengths_;
  std::vector<std::size_t> ends_;  ///< of each item's lengths; empty while each item has one
  std::vector<bool> absent_;       ///< empty while none is
};

}  // namespace levada
