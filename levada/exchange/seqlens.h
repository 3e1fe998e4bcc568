// The lengths of the sequences of each item: the ragged dimension of a field, stored compactly.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace levada {

/// The lengths of each item's sequences, in tokens (rows). An item may have no sequences, or be absent. A value type.
/// If every item has exactly one sequence, as in most fields, it is stored as a single vector of lengths.
class Seqlens {
 public:
  Seqlens() = default;
  /// Makes items of one sequence each. Throws InvalidArgument for a negative length, naming the item.
  static Seqlens one_each(std::vector<std::int64_t> lengths);
  /// Makes items of any number of sequences; nullopt is an absent item. Throws as above.
  static Seqlens of(const std::vector<std::optional<std::vector<std::int64_t>>>& items);

  std::size_t size() const { return ends_.empty() ? lengths_.size() : ends_.size(); }
  bool has(std::size_t item) const { return absent_.empty() || !absent_[item]; }
  /// Returns the lengths of an item's sequences; none for an absent item. Valid until this object changes or is
  /// destroyed.
  std::span<const std::int64_t> operator[](std::size_t item) const {
    if (ends_.empty()) return std::span(lengths_).subspan(item, 1);
    const std::size_t begin = item == 0 ? 0 : ends_[item - 1];
    return std::span(lengths_).subspan(begin, ends_[item] - begin);
  }
  /// Returns the tokens of an item: the sum of its lengths, 0 if absent.
  std::int64_t total(std::size_t item) const;

  /// Appends an item. Throws InvalidArgument for a negative length, or if the sum of the lengths does not fit 63 bits.
  void push_back(std::span<const std::int64_t> lengths);
  void push_absent();
  void reserve(std::size_t items) { lengths_.reserve(items); }

  bool operator==(const Seqlens& other) const;

 private:
  /// Switches to the general form, in which items may have any number of sequences.
  void spell_out();

  std::vector<std::int64_t> lengths_;
  std::vector<std::size_t> ends_;  ///< end of each item's lengths; empty as long as each item has one
  std::vector<bool> absent_;       ///< empty as long as no item is absent
};

}  // namespace levada
