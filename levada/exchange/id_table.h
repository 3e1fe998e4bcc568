// Maps from ids and other values to numbers, and back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levada {

/// Ids, numbered from 0 to size()-1 in the order of insertion. Memory: the concatenated ids, 16 bytes per id, and an
/// open-addressed index. Callers pass the id's hash64(). A value type.
class IdTable {
 public:
  std::size_t size() const { return entries_.size(); }
  std::string_view operator[](std::size_t number) const {
    return std::string_view(text_).substr(entries_[number].begin, entries_[number].length);
  }
  std::uint64_t hash(std::size_t number) const { return entries_[number].hash; }
  std::optional<std::size_t> find(std::string_view id, std::uint64_t hash) const;
  /// Appends the number of each of these ids, or `none`. Prefetches, so it is faster than calling find() for each of
  /// many ids.
  void find_all(std::span<const std::string> ids, std::vector<std::uint32_t>& numbers) const;
  static constexpr std::uint32_t none = UINT32_MAX;

  /// Throws InvalidArgument for an empty id and for one of more than 16 MiB.
  static void check_id(std::string_view id);
  /// Inserts an id that the table lacks and returns its number, the next one. Throws as check_id() does, and beyond
  /// 2^32 ids or 1 TiB of them.
  std::size_t insert(std::string_view id, std::uint64_t hash);
  struct FindResult {
    std::size_t number = 0;
    bool is_new = false;
  };
  /// Same as find(), followed by insert() if the table lacks the id, with a single lookup.
  FindResult find_or_insert(std::string_view id, std::uint64_t hash);
  /// Erases an id. The last id takes its number.
  void erase(std::size_t number);
  void reserve(std::size_t ids);
  /// Returns the number of ids that fit without further allocation.
  std::size_t capacity() const { return entries_.capacity(); }
  /// Returns whether much of the text belongs to erased ids.
  bool needs_compaction() const;
  /// Releases the text of erased ids if needs_compaction(). Does nothing if there is no memory for the copy.
  void compact();

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint64_t begin : 40 = 0;  ///< in the text
    std::uint64_t length : 24 = 0;
  };
  /// Returns the slot of the id, or the free slot for inserting it.
  std::size_t slot_for(std::string_view id, std::uint64_t hash) const;
  void grow_for_one_more();
  std::size_t insert_at(std::size_t slot, std::string_view id, std::uint64_t hash);
  std::size_t free_slot(std::uint64_t hash) const;
  std::size_t slot_of(std::size_t number) const;
  void erase_slot(std::size_t slot);
  void grow_slots(std::size_t ids);

  std::string text_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  ///< an id's number plus one, or 0 if free; linear probing from the hash
  std::uint64_t stale_text_ = 0;
};

/// Numbers distinct values from 0 on, in the order of their first use. References are valid until the next of().
template <typename Value>
class Interner {
 public:
  std::uint32_t of(const Value& value) {
    const auto [found, is_new] = numbers_.try_emplace(value, static_cast<std::uint32_t>(values_.size()));
    if (is_new) values_.push_back(value);
    return found->second;
  }
  const Value& operator[](std::uint32_t number) const { return values_[number]; }
  std::size_t size() const { return values_.size(); }

 private:
  std::map<Value, std::uint32_t> numbers_;
  std::vector<Value> values_;
};

/// The eight bytes of an id that follow the prefix common to all ids seen. They sort like the ids and mostly differ if
/// the ids do, so comparisons seldom need the whole id.
class IdPrefix {
 public:
  void see(std::string_view id);
  std::uint64_t of(std::string_view id) const;

 private:
  std::string_view first_;
  std::size_t common_ = SIZE_MAX;
};

}  // namespace levada
