// The table of a SampleDirectory. Private to this module.
#pragma once

#include "levada/exchange/id_table.h"
#include "levada/exchange/sample_directory.h"

namespace levada {

class SampleDirectory::State {
 public:
  State() { sets_.of({}); }

  /// As the items of a plan number them.
  static constexpr std::size_t max_keys = UINT16_MAX;

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
  const PlainValues& values(std::size_t sample) const;
  bool is_held(std::size_t sample) const;
  bool is_held_key(std::size_t key) const { return held_[key] != 0; }

  void reserve(std::size_t samples);
  /// The sample of that id, made if there is none. `hash`: hash64() of it.
  std::size_t find_or_add(std::string_view id, std::uint64_t hash);
  /// Of an id that is not here.
  std::size_t add(std::string_view id, std::uint64_t hash);
  std::size_t find_or_add_key(const SampleKey& key);
  std::uint32_t intern(const Holders& holders) { return sets_.of(holders); }
  std::uint32_t with(std::uint32_t set, const Holder& holder);
  std::uint32_t with(std::uint32_t set, const Holders& more);
  std::uint32_t without(std::uint32_t set, int rank);
  void put(std::size_t sample, std::size_t key, std::uint32_t set, std::span<const std::int64_t> lengths);
  /// put() into a cell that has had nothing.
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
  /// Gives each cell that somebody holds the set number(of its own).
  template <typename Number>
  void renumber_sets(Number number) {
    for (auto& column : columns_) {
      for (Cell& cell : column) cell.set = cell.set == 0 ? 0 : number(cell.set);
    }
  }
  void put_values(std::size_t sample, PlainValues values);
  /// Beside those known; where they differ, these.
  void add_values(std::size_t sample, PlainValues values);
  /// The last sample takes its number.
  void forget(std::size_t sample);
  /// Whether a copy without what is dead would be much smaller, or there is a key that nobody holds.
  bool needs_compaction() const;
  /// Takes the sets that there are now for those in use.
  void set_live_sets() { live_sets_ = sets_.size(); }

  /// Throws InvalidArgument where there is no room for so many more keys.
  void check_room(std::size_t more_keys) const;
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
  std::vector<std::size_t> held_;           ///< by key, the cells that somebody holds
  std::vector<std::int64_t> lengths_;
  std::uint64_t dead_lengths_ = 0;
  std::vector<PlainValues> values_;  ///< by sample; empty while none has any
  Interner<Holders> sets_;           ///< 0 is nobody
  struct Joined {
    std::uint32_t set = 0;
    Holder holder{-1};
    std::uint32_t result = 0;
  };
  Joined joined_;              ///< what with() gave last: neighbors mostly ask alike
  std::size_t live_sets_ = 1;  ///< after the last compaction
};

}  // namespace levada
