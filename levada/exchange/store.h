// The samples that one rank holds.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/exchange/id_table.h"
#include "levada/exchange/sample_batch.h"
#include "levada/exchange/sample_directory.h"
#include "levada/tensor/buffer_pool.h"

namespace levada {

struct SampleStoreOptions {
  /// Maximum bytes of tensors. A call that would exceed it throws InvalidArgument and stores nothing.
  std::uint64_t max_bytes = UINT64_MAX;
  /// Ranks exchange only between stores of the same name.
  std::string name = {};
};

/// Samples by id, each with its keys. The store copies samples unless the caller requests otherwise, so it never keeps
/// a caller's or a sender's memory alive. get() returns views that share memory with the store. They must not be
/// written, and they stay valid and unchanged when the store changes. All functions may be called from any thread.
/// Errors are InvalidArgument (or std::bad_alloc) and name id and key; a call that throws leaves the store unchanged.
class SampleStore {
 public:
  explicit SampleStore(SampleStoreOptions options = {}) : options_(std::move(options)) {}

  /// Adds new samples. Throws for an id that is already in the store or longer than 16 MiB, for a meta, and if
  /// max_bytes would be exceeded.
  void store(const SampleBatch& samples);
  /// Same as store(), but the store keeps the batch's memory, which must not be written from then on.
  void store_without_copy(const SampleBatch& samples);
  /// Adds keys and values to stored samples, replacing existing ones. Throws for an id that is not in the store, for a
  /// meta, and if max_bytes would be exceeded.
  void update(const SampleBatch& samples);
  /// Returns these samples, in this order, with these keys (if `keys` is empty, with every key that any of them has). A
  /// key that a sample lacks is absent for it. Throws for an id that is not in the store, for a key whose dtype or
  /// trailing shape differ among the samples, and for a key that none of them has; with `allow_absent` the latter is
  /// absent for all and has no dtype.
  SampleBatch get(std::span<const std::string> ids, std::span<const std::string> keys = {},
                  bool allow_absent = false) const;
  /// Same as get(), but the batch has a copy, which may be written.
  SampleBatch get_copy(std::span<const std::string> ids, std::span<const std::string> keys = {},
                       bool allow_absent = false);
  bool has(std::string_view id) const;
  bool has(std::string_view id, std::string_view key) const;
  /// Returns the part of a key's tokens that the store has, or nothing if it lacks the key.
  std::optional<SequencePart> part(std::string_view id, std::string_view key) const;
  /// Removes these samples. Ignores ids that are not in the store.
  void remove(std::span<const std::string> ids);
  /// Removes all samples, and releases memory cached for later ones.
  void clear();

  std::size_t size() const;
  std::uint64_t bytes() const;
  /// Same as Reading::version().
  std::uint64_t version() const;
  std::uint64_t max_bytes() const { return options_.max_bytes; }
  const std::string& name() const { return options_.name; }
  /// Returns the ids, ascending.
  std::vector<std::string> ids() const;

  /// Returns the holdings that this store's rank, `rank`, reports to others: all samples, or only these ids and keys.
  SampleDirectory directory(int rank) const;
  SampleDirectory directory(int rank, std::span<const std::string> ids, std::span<const std::string> keys) const;

  /// A received key of one sample. Borrows everything but its bytes.
  struct PendingWrite {
    std::string_view id;
    std::uint64_t hash = 0;  ///< hash64() of the id
    const PlainValues& values;
    const SampleKey& key;
    std::span<const std::int64_t> lengths;  ///< lengths of the whole sequences
    SequencePart part;
    SampleBytes bytes;
    std::uint64_t size = 0;     ///< size of `bytes`, as implied by key, lengths and part
    std::uint64_t content = 0;  ///< same as Entry::content
  };
  /// Stores complete writes without a copy. Their bytes must be in memory from allocate(). A sample that already has
  /// the whole key, or that part, keeps it. Throws if max_bytes would be exceeded. Fastest if the keys of a sample are
  /// adjacent.
  void commit(std::span<PendingWrite> writes);
  /// Allocates from this engine's memory from now on, as long as it has room for storage (BlockUse). Ranks that share
  /// this memory can then read received samples in place. Does nothing if the store already has a live engine.
  void use_memory_of(const std::shared_ptr<Engine>& engine);
  /// Allocates memory for items to commit, one buffer per size. The memory is reused when samples are removed. Items of
  /// up to 256 KiB share blocks of at most that size, which bounds the memory of removed items that a remaining item
  /// keeps alive.
  std::vector<BufferPool::Buffer> allocate(std::span<const std::uint64_t> sizes);

  /// Lengths of an item's sequences. A single length, the usual case, needs no allocation.
  class Lengths {
   public:
    Lengths() = default;
    explicit Lengths(std::span<const std::int64_t> lengths);
    std::span<const std::int64_t> all() const { return {many_ ? many_.get() : &one_, count_}; }

   private:
    std::size_t count_ = 0;
    std::int64_t one_ = 0;
    std::unique_ptr<std::int64_t[]> many_;
  };
  /// One key of one sample.
  struct Entry {
    SampleBytes bytes;
    std::uint64_t size = 0;
    Lengths lengths;    ///< lengths of the whole sequences
    SequencePart part;  ///< the part of them that is in the store
    bool is_here = false;
    /// Hash of the whole sequences' bytes, by which ranks detect that they hold different contents; 0 until computed.
    mutable std::uint64_t content = 0;
  };
  /// One key of all samples. A name has one column per dtype and shape that samples have it with; a column that no
  /// sample uses is dropped.
  struct Column {
    SampleKey key;
    std::vector<Entry> entries;  ///< by sample
    std::size_t held = 0;        ///< number of entries that are here
  };
  /// Reads the store under its lock, which blocks other calls. Results are valid for the lifetime of the Reading.
  class Reading {
   public:
    explicit Reading(const SampleStore& store) : store_(store), lock_(store.mutex_) {}

    std::size_t size() const { return store_.ids_.size(); }
    /// Returns a number that differs after each change, and between any two stores that have been changed. As long as
    /// it stays the same, samples keep their numbers and contents.
    std::uint64_t version() const { return store_.version_; }
    /// Returns the number of a sample. `hash`: hash64() of the id.
    std::optional<std::size_t> find(std::string_view id, std::uint64_t hash) const {
      return store_.ids_.find(id, hash);
    }
    std::string_view id(std::size_t sample) const { return store_.ids_[sample]; }
    const PlainValues& values(std::size_t sample) const { return store_.values_[sample]; }
    std::span<const Column> columns() const { return store_.columns_; }
    /// Returns Entry::content, computing it on the first call by reading the bytes once.
    static std::uint64_t content_of(const Entry& entry);

   private:
    const SampleStore& store_;
    std::lock_guard<std::mutex> lock_;
  };

 private:
  class Rollback;
  enum class Payload { copied, shared };

  std::optional<std::size_t> find(std::string_view id) const;
  std::size_t number_of(std::string_view id) const;
  void add(const SampleBatch& samples, Payload payload);
  /// Returns the sample with that id, or the column of that key, adding it if there is none. A Rollback undoes an
  /// addition.
  std::size_t find_or_add(std::string_view id, std::uint64_t hash);
  std::size_t column_of(const SampleKey& key);
  /// Returns the columns whose key has that name.
  std::vector<std::size_t> columns_named(std::string_view name) const;
  /// Returns the column in which a sample has a key of that name; null if it lacks the key.
  const Column* column_with(std::size_t sample, std::string_view key) const;
  void check_bound(std::uint64_t bytes) const;
  void put(const SampleBatch& samples, Payload payload);
  /// Adds a key's items to the result of get().
  void add_key(SampleBatch& batch, std::span<const std::size_t> samples, const std::string& name,
               bool allow_absent) const;
  // The following cannot fail.
  void put_values(std::size_t sample, PlainValues values);
  void put_entry(std::size_t sample, std::size_t column, Entry entry);
  void replace(Column& column, std::size_t sample, Entry by);
  void drop_unused_columns();

  std::vector<BufferPool::Buffer> allocate_all(std::span<const std::uint64_t> sizes);
  BufferPool::Buffer allocate_piece(std::uint64_t bytes);

  SampleStoreOptions options_;
  BufferPool memory_;
  std::weak_ptr<Engine> engine_;  ///< allocated from first
  mutable std::mutex mutex_;
  IdTable ids_;
  std::vector<PlainValues> values_;  ///< by sample
  std::vector<Column> columns_;
  std::uint64_t bytes_ = 0;
  std::uint64_t version_ = 0;  ///< 0 until the first change
};

}  // namespace levada
