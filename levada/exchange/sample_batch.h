// Samples as reinforcement learning produces them: ids, and a ragged field for each key.
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

/// A plain value that a sample carries in addition to its tensors. Bytes are an encode_tree() message, which can hold a
/// value of any other type.
using PlainValue = std::variant<None, bool, std::int64_t, double, std::string, Bytes>;
/// Plain values by name; only names that have a value. Compared bitwise: a NaN equals itself.
using PlainValues = std::map<std::string, PlainValue>;
bool same_values(const PlainValues& a, const PlainValues& b);

/// Properties that all items of a key share. `dtype` has no bits until an item is known.
struct SampleKey {
  std::string name;
  DType dtype;
  Shape trailing;  ///< shape of one token: {} for scalars, {hidden} for vectors
  bool operator==(const SampleKey&) const = default;

  /// Returns the bytes of this many tokens, or nothing if they do not fit in memory.
  std::optional<std::uint64_t> bytes(std::int64_t tokens) const;
};

/// The contiguous bytes of one item, and the owner that keeps them alive.
struct SampleBytes {
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
};

/// Samples by id. A value type. For each id, a key has one or several sequences of tokens, each token a tensor of the
/// key's dtype and trailing shape, or is absent. Each id also has plain values. A batch without data (a meta) has the
/// same structure. Keys are in ascending order regardless of insertion; ids keep their order. Copying, splitting,
/// selecting and gathering share the tensors' memory; only packed() may copy. All errors are InvalidArgument and name
/// id and key. Positions count from 0 to size()-1.
class SampleBatch {
 public:
  SampleBatch() = default;
  /// Makes a batch without keys. Throws for an empty id and for one that appears twice.
  explicit SampleBatch(std::vector<std::string> ids);

  std::size_t size() const { return ids_.size(); }
  const std::vector<std::string>& ids() const { return ids_; }
  std::vector<std::string> keys() const;
  bool has_key(std::string_view key) const;
  /// Each throws for a key that the batch lacks, listing the keys that it has.
  const SampleKey& key(std::string_view key) const;
  const Seqlens& seqlens(std::string_view key) const;
  /// Returns whether the items of a key, or of all keys, have data.
  bool has_data(std::string_view key) const;
  bool has_data() const;
  /// Returns the bytes of all items, with or without data.
  std::uint64_t byte_count() const;

  /// Adds or replaces a key. `packed` has the concatenated tokens of all items, [sum of lengths, trailing...]; it is
  /// viewed if contiguous, otherwise copied. The second overload is for a meta. Throws if lengths and tensor do not
  /// match, for elements that are not whole bytes, and for memory of another device.
  void set(std::string key, Tensor packed, Seqlens seqlens);
  void set(SampleKey key, Seqlens seqlens);
  /// Takes one tensor per item, [total, trailing...], each viewed or copied as above; empty for an item absent from
  /// `seqlens`.
  void set_items(SampleKey key, std::span<const std::optional<Tensor>> items, Seqlens seqlens);
  /// Same as set_items(), for bytes that match by construction.
  void set_bytes(SampleKey key, std::vector<SampleBytes> items, Seqlens seqlens);

  /// Returns the tokens of one item, [total, trailing...], as a view; nothing if the item is absent. Throws for a meta.
  std::optional<Tensor> item(std::string_view key, std::size_t position) const;
  /// Returns one sequence of an item as a view. Throws if there is no such sequence.
  Tensor sequence(std::string_view key, std::size_t position, std::size_t sequence) const;
  /// Returns all items' tokens, [sum, trailing...]. The result is a view if the items are adjacent in one memory, as
  /// those of a packed tensor, of a part of one, and of consecutive items are; otherwise it is a copy.
  Tensor packed(std::string_view key) const;
  /// Returns an item's bytes; null for an absent item.
  const SampleBytes& bytes_at(std::string_view key, std::size_t position) const;

  const PlainValues& values(std::size_t position) const;
  void set_values(std::size_t position, PlainValues values);

  /// Concatenates batches; the inverse of the splits below. A key that one of them lacks is absent for its ids. Throws
  /// for an id that appears twice, and for a key whose dtype or trailing shape differ.
  static SampleBatch gather(std::span<const SampleBatch> batches);
  /// Splits into consecutive parts of counts[0], counts[1], ... ids. Every part has all keys. Throws unless the counts
  /// add up to size().
  std::vector<SampleBatch> split(std::span<const std::size_t> counts) const;
  /// Splits by a partition, keeping all keys of a sample together. Throws unless the partition has every position
  /// exactly once.
  std::vector<SampleBatch> split(const Partition& partition) const;
  /// Returns a division into `parts` by the cost of the sequences of `key` (absent items have none), or of all keys if
  /// `key` is empty. Throws InvalidArgument as partition_by_cost() does, for fewer samples than parts, and for a cost
  /// by weights.
  Partition balanced(std::size_t parts, std::string_view key = {}, PartSizes sizes = PartSizes::any,
                     const SampleCost& cost = {}) const;
  /// Returns batches of one id each.
  std::vector<SampleBatch> unpack() const;
  /// Returns the ids at these positions, in this order. Throws for a position that is out of range or listed twice.
  SampleBatch at(std::span<const std::size_t> positions) const;
  /// Same as at(), but `order` must list every position. select_ids() with the ids of this batch undoes it.
  SampleBatch reorder(std::span<const std::size_t> order) const;
  /// Each returns the given ids, or keys, in this order, and throws for one that the batch lacks.
  SampleBatch select_ids(std::span<const std::string> ids) const;
  SampleBatch select_keys(std::span<const std::string> keys) const;
  /// Returns the batch with keys renamed; keys that are not listed stay. Throws if two keys would have one name, or if
  /// a listed key does not exist.
  SampleBatch rename_keys(const std::map<std::string, std::string>& names) const;
  /// Adds the keys and values of `other`, replacing existing ones. Throws unless it has the same ids, in any order.
  void update(const SampleBatch& other);

  /// Returns a copy in new memory from `pool`, in which each key's items are consecutive.
  SampleBatch copied(BufferPool& pool) const;

  /// Returns the structure without the data.
  SampleBatch meta() const;
  /// Returns the meta as one JSON object: {"ids": [...], "keys": {"tokens": {"dtype": "int64", "trailing": [],
  /// "seqlens": [[12], [3, 4], null]}}, "values": [{"reward": 1.5}, ...]}. from_json() parses untrusted text and throws
  /// InvalidArgument with what is wrong and where. A number that is not finite is a string: "nan", "inf". Bytes are
  /// {"message": "6c766461..."}, in hexadecimal digits.
  std::string to_json() const;
  static SampleBatch from_json(std::string_view text);

  /// Compares ids, keys, lengths, values and bits; for metas, all but the bits.
  bool operator==(const SampleBatch& other) const;

 private:
  struct Field {
    SampleKey key;
    Seqlens seqlens;
    std::vector<SampleBytes> data;  ///< one per item; empty for a meta
    bool has_data = false;
  };
  static std::string_view name_of(const Field& field) { return field.key.name; }
  /// Returns the index of a key in fields_, or fields_.size() if absent.
  std::size_t find(std::string_view key) const;
  const Field& field(std::string_view key) const;
  void insert(Field field);
  void check_size(std::string_view key, const Seqlens& seqlens) const;
  void check_position(std::size_t position) const;
  Tensor view(const Field& field, const SampleBytes& bytes, std::int64_t tokens) const;
  static void append(Field& to, const Field& from, std::size_t position);

  std::vector<std::string> ids_;
  std::vector<Field> fields_;        ///< ascending by key
  std::vector<PlainValues> values_;  ///< one per id; empty as long as no id has any
};

}  // namespace levada
