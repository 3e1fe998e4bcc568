// How an Ownership keeps its table: for this module's sources alone.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>

#include "levada/exchange/id_table.h"
#include "levada/exchange/ownership.h"

namespace levada {

class Ownership::State {
 public:
  /// One key of one sample. A single length lies in `value`; else `value` is where they begin in the pool.
  struct Cell {
    std::uint32_t set = 0;
    std::uint32_t count = 0;
    std::int64_t value = 0;
  };

  std::size_t size() const { return ids_.size(); }
  const IdTable& ids() const { return ids_; }
  std::string_view id(std::size_t sample) const { return ids_[sample]; }
  const std::vector<SampleKey>& keys() const { return keys_; }
  std::optional<std::size_t> find_key(std::string_view name) const;
  const Cell& cell(std::size_t sample, std::size_t key) const { return columns_[key][sample]; }
  const Holders& holders(std::uint32_t set) const { return sets_[set]; }
  std::size_t set_count() const { return sets_.size(); }
  std::span<const std::int64_t> lengths(const Cell& cell) const {
    return cell.count == 1 ? std::span(&cell.value, 1)
                           : std::span(lengths_).subspan(static_cast<std::size_t>(cell.value), cell.count);
  }
  const PlainValues& values(std::size_t sample) const { return values_[value_of_.empty() ? 0 : value_of_[sample]]; }
  bool is_held(std::size_t sample) const;

  void reserve(std::size_t samples);
  /// The sample of that id, made if there is none. `hash`: hash64() of it.
  std::size_t take_in(std::string_view id, std::uint64_t hash);
  std::size_t take_in(std::string_view id);
  /// Of an id that is not here.
  std::size_t add(std::string_view id, std::uint64_t hash);
  std::size_t take_in_key(const SampleKey& key);
  std::uint32_t intern(const Holders& holders);
  std::uint32_t with(std::uint32_t set, const Holder& holder);
  std::uint32_t without(std::uint32_t set, int rank);
  void put(std::size_t sample, std::size_t key, std::uint32_t set, std::span<const std::int64_t> lengths);
  /// put() into a cell that has had nothing.
  void put_first(std::size_t sample, std::size_t key, std::uint32_t set, std::span<const std::int64_t> lengths) {
    if (lengths.size() == 1) columns_[key][sample] = {set, 1, lengths[0]};
    else put(sample, key, set, lengths);
  }
  void set_holders(std::size_t sample, std::size_t key, std::uint32_t set) { columns_[key][sample].set = set; }
  void put_values(std::size_t sample, PlainValues values);
  /// Beside those known; where they differ, these.
  void add_values(std::size_t sample, PlainValues values);
  /// The last sample takes its number.
  void forget(std::size_t sample);
  /// Gives the memory of what has been forgotten back, where that is much.
  void tidy();

  /// Refuse what contradicts what other ranks than `rank` say, naming id, key and ranks; a key's dtype and shape also
  /// what `rank` itself says of other samples than those that are being `replaced`.
  void check_key(const SampleKey& key, std::string_view id, int rank, std::span<const std::size_t> replaced) const;
  void check_lengths(std::size_t sample, std::size_t key, std::span<const std::int64_t> lengths, int rank) const;
  void check_values(std::size_t sample, const PlainValues& values, int rank) const;

 private:
  bool held_by_another(std::uint32_t set, int rank) const;

  IdTable ids_;
  std::vector<SampleKey> keys_;
  std::vector<std::vector<Cell>> columns_;  ///< by key
  std::vector<std::int64_t> lengths_;
  std::uint64_t stale_lengths_ = 0;
  std::vector<std::uint32_t> value_of_;  ///< empty while no sample has values
  std::deque<PlainValues> values_{{}};
  std::vector<std::uint32_t> free_values_;
  std::deque<Holders> sets_{{}};
  struct Joined {
    std::uint32_t set = 0;
    Holder holder{-1};
    std::uint32_t result = 0;
  };
  Joined joined_;  ///< what with() gave last: neighbours mostly ask alike
  std::map<Holders, std::uint32_t> set_numbers_{{{}, 0}};
};

}  // namespace levada
