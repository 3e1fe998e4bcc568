// The table of a SampleDirectory. Private to this module.
#pragma once

#include "levada/exchange/id_table.h"
#include "levada/exchange/sample_directory.h"

namespace levada {

class SampleDirectory::State {
 public:
  State() { sets_.of({}); }

  /// A plan refers to keys by 16-bit numbers.
  static constexpr std::size_t max_keys = UINT16_MAX;

  /// One key of one sample. A single length is stored in `value`; otherwise `value` is the offset of the lengths in the
  /// pool.
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
  const PlainValues& values(std::size_t sample) const;
  bool is_held(std::size_t sample) const;
  bool is_held_key(std::size_t key) const { return held_[key] != 0; }

  void reserve(std::size_t samples);
  /// Returns the sample with that id, adding it if there is none. `hash`: hash64() of the id.
  std::size_t find_or_add(std::string_view id, std::uint64_t hash);
  /// Adds an id that is not in the table.
  std::size_t add(std::string_view id, std::uint64_t hash);
  std::size_t find_or_add_key(const SampleKey& key);
  std::uint32_t intern(const Holders& holders) { return sets_.of(holders); }
  std::uint32_t add_holder(std::uint32_t set, const Holder& holder);
  std::uint32_t add_holders(std::uint32_t set, const Holders& more);
  std::uint32_t remove_holder(std::uint32_t set, int rank);
  void put(std::size_t sample, std::size_t key, std::uint32_t set, std::span<const std::int64_t> lengths);
  /// Same as put(), for a cell that has never been set.
  void put_new(std::size_t sample, std::size_t key, std::uint32_t set, std::span<const std::int64_t> lengths) {
    if (lengths.size() != 1) return put(sample, key, set, lengths);
    columns_[key][sample] = {set, 1, lengths[0]};
    ++held_[key];
  }
  void set_holders(std::size_t sample, std::size_t key, std::uint32_t set) {
    std::uint32_t& known = columns_[key][sample].set;
    held_[key] = held_[key] - (known != 0 ? 1 : 0) + (set != 0 ? 1 : 0);
    known = set;
  }
  /// Replaces the set of each cell that has holders by number(set).
  template <typename Number>
  void renumber_sets(Number number) {
    for (auto& column : columns_) {
      for (Cell& cell : column) cell.set = cell.set == 0 ? 0 : number(cell.set);
    }
  }
  void put_values(std::size_t sample, PlainValues values);
  /// Merges with the known values; on conflict, the new ones win.
  void add_values(std::size_t sample, PlainValues values);
  /// Removes a sample. The last sample takes over its number.
  void forget(std::size_t sample);
  /// Returns whether a copy without dead entries would be much smaller, or a key has no holder.
  bool needs_compaction() const;
  /// Records that the current sets are those in use.
  void set_live_sets() { live_sets_ = sets_.size(); }

  /// Throws InvalidArgument if there is no room for this many more keys.
  void check_room(std::size_t more_keys) const;
  /// Each throws for facts that contradict those of ranks other than `rank`, naming id, key and ranks. check_key() also
  /// compares with other samples of `rank`, except those that are being `replaced`.
  void check_key(const SampleKey& key, std::string_view id, int rank, std::span<const std::size_t> replaced) const;
  void check_lengths(std::size_t sample, std::size_t key, std::span<const std::int64_t> lengths, int rank) const;
  void check_values(std::size_t sample, const PlainValues& values, int rank) const;

 private:
  bool held_by_another(std::uint32_t set, int rank) const;

  IdTable ids_;
  std::vector<SampleKey> keys_;
  std::vector<std::vector<Cell>> columns_;  ///< by key
  std::vector<std::size_t> held_;           ///< number of cells that have holders, by key
  std::vector<std::int64_t> lengths_;
  std::uint64_t dead_lengths_ = 0;
  std::vector<PlainValues> values_;  ///< by sample; empty as long as no sample has any
  Interner<Holders> sets_;           ///< set 0 is empty
  struct LastAddition {
    std::uint32_t set = 0;
    Holder holder{-1};
    std::uint32_t result = 0;
  };
  LastAddition last_addition_;  ///< the last result of add_holder(), because neighbors mostly repeat it
  std::size_t live_sets_ = 1;   ///< after the last compaction
};

}  // namespace levada
