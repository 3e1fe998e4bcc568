// Samples as reinforcement learning makes them: ids, and for each key a ragged field.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "levada/exchange/seqlens.h"
#include "levada/plan/partition.h"
#include "levada/tensor/buffer_pool.h"
#include "levada/tensor/tensor.h"
#include "levada/tree/tree.h"

namespace levada {

/// A plain value that a sample carries beside its tensors. Bytes are a message of encode_tree(), which holds a value
/// that is none of the others.
using PlainValue = std::variant<None, bool, std::int64_t, double, std::string, Bytes>;
/// By name; only names that have a value. Equal as bits: a NaN equals itself.
using PlainValues = std::map<std::string, PlainValue>;
bool same_values(const PlainValues& a, const PlainValues& b);

/// What all items of a key have in common. `dtype` has no bits while no item is known.
struct SampleKey {
  std::string name;
  DType dtype;
  Shape trailing;  ///< of one token: {} for scalars, {hidden} for vectors
  bool operator==(const SampleKey&) const = default;

  /// Bytes of so many tokens; empty where they do not fit in memory.
  std::optional<std::uint64_t> bytes(std::int64_t tokens) const;
};

/// Bytes of one item, contiguous, and what keeps them alive.
struct SampleBytes {
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
};

/// Samples by id: a value. Each key has for every id one or several sequences of tokens, each token a tensor of the
/// key's dtype and trailing shape, or is absent there; beside them each id has plain values. A batch without data (a
/// meta) has the same structure. Keys are in ascending order, whatever the order they came in; ids keep theirs.
/// Copies, divisions, selections and gatherings share the tensors' memory; only packed() may copy. All that throws,
/// throws InvalidArgument and names id and key. Positions count from 0 to size()-1.
class SampleBatch {
 public:
  SampleBatch() = default;
  /// No keys yet. Throws for an empty id and for one that is listed twice.
  explicit SampleBatch(std::vector<std::string> ids);

  std::size_t size() const { return ids_.size(); }
  const std::vector<std::string>& ids() const { return ids_; }
  std::vector<std::string> keys() const;
  bool has_key(std::string_view key) const;
  /// Throw for a key that is not there, listing those that are.
  const SampleKey& key(std::string_view key) const;
  const Seqlens& seqlens(std::string_view key) const;
  /// Whether the items of a key have data; of a batch: whether those of all keys have.
  bool has_data(std::string_view key) const;
  bool has_data() const;
  /// Bytes of all items, whether they are here or not.
  std::uint64_t byte_count() const;

  /// Adds a key, or replaces it. `packed`: the items' tokens one after the other, [sum of lengths, trailing...]; it is
  /// viewed where it is contiguous, else copied. The second form is that of a meta. Throws where lengths and tensor do
  /// not fit, for elements that do not begin on bytes, and for another device's memory.
  void set(std::string key, Tensor packed, Seqlens seqlens);
  void set(SampleKey key, Seqlens seqlens);
  /// One tensor an item, [total, trailing...], each viewed or copied as above; empty where `seqlens` is absent.
  void set_items(SampleKey key, std::span<const std::optional<Tensor>> items, Seqlens seqlens);
  /// What set_items() does, for bytes that fit by construction.
  void set_bytes(SampleKey key, std::vector<SampleBytes> items, Seqlens seqlens);

  /// The tokens of one item, [total, trailing...], as a view; empty where the item is absent. Throws for a meta.
  std::optional<Tensor> item(std::string_view key, std::size_t position) const;
  /// One sequence of an item, as a view. Throws where there is none.
  Tensor sequence(std::string_view key, std::size_t position, std::size_t sequence) const;
  /// All items' tokens, [sum, trailing...]: a view where they lie one after the other in one memory, as those of a
  /// packed tensor, of a division of it and of consecutive items do; else a copy.
  Tensor packed(std::string_view key) const;
  /// Where an item's bytes lie; null for an absent item.
  const SampleBytes& bytes_at(std::string_view key, std::size_t position) const;

  const PlainValues& values(std::size_t position) const;
  void set_values(std::size_t position, PlainValues values);

  /// One after the other. A key that one of them lacks is absent for its ids. The inverse of the divisions below.
  /// Throws for an id that is listed twice, and for a key whose dtype or trailing shape differ.
  static SampleBatch gather(std::span<const SampleBatch> batches);
  /// Consecutive parts of so many ids each, every part with all keys. Throws unless the counts add up to size().
  std::vector<SampleBatch> split(std::span<const std::size_t> counts) const;
  /// As a partition says; all keys stay together. Throws unless every position stands in it exactly once.
  std::vector<SampleBatch> split(const Partition& partition) const;
  /// The division over `parts` by the cost of the sequences of `key` (absent items have none), or of all keys where it
  /// is empty. Throws InvalidArgument as partition_by_cost() does, for fewer samples than parts, and for a cost by
  /// weights.
  Partition balanced(std::size_t parts, std::string_view key = {}, PartSizes sizes = PartSizes::any,
                     const SampleCost& cost = {}) const;
  /// Batches of one id each.
  std::vector<SampleBatch> unpack() const;
  /// The ids at these positions, in this order. Throws for one out of range or twice.
  SampleBatch at(std::span<const std::size_t> positions) const;
  /// at() with every position in it. select_ids() with the ids of this batch undoes it.
  SampleBatch reorder(std::span<const std::size_t> order) const;
  /// These ids, in this order; these keys. Throw for one that is not there.
  SampleBatch select_ids(std::span<const std::string> ids) const;
  SampleBatch select_keys(std::span<const std::string> keys) const;
  /// Keys under other names; those not named stay. Throws where two keys would have one name, or for no such key.
  SampleBatch rename_keys(const std::map<std::string, std::string>& names) const;
  /// Adds the keys and values of `other`, replacing those that are here. Throws unless it has the same ids, in any
  /// order.
  void update(const SampleBatch& other);

  /// Returns the same samples in new memory of `pool`, a key's items one after the other.
  SampleBatch copied(BufferPool& pool) const;

  /// The structure without the data.
  SampleBatch meta() const;
  /// The meta as one JSON object: {"ids": [...], "keys": {"tokens": {"dtype": "int64", "trailing": [], "seqlens":
  /// [[12], [3, 4], null]}}, "values": [{"reward": 1.5}, ...]}. from_json() reads text that may lie, and throws
  /// InvalidArgument that says what is wrong and where. A number that is not finite is a string there: "nan", "inf".
  /// Bytes are {"message": "6c766461..."}, their hexadecimal digits.
  std::string to_json() const;
  static SampleBatch from_json(std::string_view text);

  /// Same ids, keys, lengths, values and bits, or the same meta.
  bool operator==(const SampleBatch& other) const;

 private:
  struct Field {
    SampleKey key;
    Seqlens seqlens;
    std::vector<SampleBytes> data;  ///< one an item; empty for a meta
    bool has_data = false;
  };
  static std::string_view name_of(const Field& field) { return field.key.name; }
  /// Where a key stands in fields_, or size of it.
  std::size_t find(std::string_view key) const;
  const Field& field(std::string_view key) const;
  void insert(Field field);
  void check_size(std::string_view key, const Seqlens& seqlens) const;
  void check_position(std::size_t position) const;
  Tensor view(const Field& field, const SampleBytes& bytes, std::int64_t tokens) const;
  static void append(Field& to, const Field& from, std::size_t position);

  std::vector<std::string> ids_;
  std::vector<Field> fields_;        ///< ascending by key
  std::vector<PlainValues> values_;  ///< one an id; empty while no id has any
};

}  // namespace levada
