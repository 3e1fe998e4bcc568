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
  /// Most bytes of tensors; what would go beyond is refused with InvalidArgument, and nothing of that call is stored.
  std::uint64_t max_bytes = UINT64_MAX;
  /// Ranks exchange between stores of the same name alone.
  std::string name = {};
};

/// Samples by id, each with its keys, in memory of their own: what is stored is copied unless the caller says
/// otherwise, so that a store never holds on to a caller's or a sender's memory. get() returns views that
/// share memory with the store, must not be written, and stay valid and unchanged when the store changes. Any thread.
/// All that throws, throws InvalidArgument (or std::bad_alloc) and names id and key; whatever a call that changes the
/// store throws, nothing has changed then.
class SampleStore {
 public:
  explicit SampleStore(SampleStoreOptions options = {}) : options_(std::move(options)) {}

  /// New samples. Throws for an id that is here already or of more than 16 MiB, for a meta, and beyond the bound.
  void store(const SampleBatch& samples);
  /// store(), but the store holds the batch's own memory, which must not be written meanwhile.
  void store_without_copy(const SampleBatch& samples);
  /// Adds keys and values to samples that are here, replacing what they have. Throws for an id that is not here, for a
  /// meta, and beyond the bound.
  void update(const SampleBatch& samples);
  /// These samples, in this order, with these keys (all that any of them has where `keys` is empty); a key that a
  /// sample lacks is absent for it. Throws for an id that is not here, for a key that none of them has (with
  /// `allow_absent` that is absent for all, and of no dtype), and for one whose dtype or trailing shape differ among
  /// them.
  SampleBatch get(std::span<const std::string> ids, std::span<const std::string> keys = {},
                  bool allow_absent = false) const;
  /// get(), but the batch has a copy, in memory of its own that may be written.
  SampleBatch get_copy(std::span<const std::string> ids, std::span<const std::string> keys = {},
                       bool allow_absent = false);
  bool has(std::string_view id) const;
  bool has(std::string_view id, std::string_view key) const;
  /// Which tokens are here of a key; empty where it is not.
  std::optional<SequencePart> part(std::string_view id, std::string_view key) const;
  /// Ids that are not here are ignored.
  void remove(std::span<const std::string> ids);
  /// Removes all samples, and releases memory that is kept for later ones.
  void clear();

  std::size_t size() const;
  std::uint64_t bytes() const;
  /// As Reading::version().
  std::uint64_t version() const;
  std::uint64_t max_bytes() const { return options_.max_bytes; }
  const std::string& name() const { return options_.name; }
  /// Ascending.
  std::vector<std::string> ids() const;

  /// Returns the holdings that `rank`, the store's rank, sends to others: all samples, or some of them and some keys.
  SampleDirectory directory(int rank) const;
  SampleDirectory directory(int rank, std::span<const std::string> ids, std::span<const std::string> keys) const;

  /// What has arrived of one sample's key. Borrows all but its bytes.
  struct Arrival {
    std::string_view id;
    std::uint64_t hash = 0;  ///< hash64() of the id
    const PlainValues& values;
    const SampleKey& key;
    std::span<const std::int64_t> lengths;  ///< of the whole sequences
    SequencePart part;
    SampleBytes bytes;
    std::uint64_t size = 0;     ///< of the bytes, as key, lengths and part have it
    std::uint64_t content = 0;  ///< as Entry::content
  };
  /// Stores what has arrived, complete and in memory of allocate(), without a copy. A sample that has the whole of a
  /// key, or that part, keeps it. Throws beyond the bound. Quickest where keys of one sample are neighbors.
  void commit(std::span<Arrival> arrivals);
  /// From now on takes memory of this engine, as far as it has some for storage (BlockUse), so that ranks that share
  /// its memory can read what they are to have where it lies. Nothing happens where the store has an engine that lives.
  void use_memory_of(const std::shared_ptr<Engine>& engine);
  /// Memory for items that are to be committed, one of each size; used again when samples go. Items of up to 256 KiB
  /// share pieces of so much, which bounds what one that stays keeps of those that go.
  std::vector<BufferPool::Buffer> allocate(std::span<const std::uint64_t> sizes);

  /// Lengths of an item's sequences; one, as most have, needs no memory of its own.
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
    Lengths lengths;    ///< of the whole sequences
    SequencePart part;  ///< what of them is here
    bool is_here = false;
    /// A hash of the bytes of the whole sequences, by which ranks find that they hold different ones; 0: not made yet.
    mutable std::uint64_t content = 0;
  };
  /// What samples have of one key. A name has as many columns as samples have it with different dtypes or shapes; what
  /// no sample has any more has none.
  struct Column {
    SampleKey key;
    std::vector<Entry> entries;  ///< by sample
    std::size_t held = 0;        ///< of the entries, those that are here
  };
  /// Reads the store under its lock: other calls wait. Whatever it returns is valid as long as the Reading.
  class Reading {
   public:
    explicit Reading(const SampleStore& store) : store_(store), lock_(store.mutex_) {}

    std::size_t size() const { return store_.ids_.size(); }
    /// Differs after each change, and between stores that were ever changed: while it stays, samples keep their
    /// numbers and what they have.
    std::uint64_t version() const { return store_.version_; }
    /// The number of a sample; ids come with their hash64().
    std::optional<std::size_t> find(std::string_view id, std::uint64_t hash) const {
      return store_.ids_.find(id, hash);
    }
    std::string_view id(std::size_t sample) const { return store_.ids_[sample]; }
    const PlainValues& values(std::size_t sample) const { return store_.values_[sample]; }
    std::span<const Column> columns() const { return store_.columns_; }
    /// Returns Entry::content, and makes it on the first call, which reads the bytes once.
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
  /// Finds the sample of that id, or the column of that key, or adds it; undone by a Rollback.
  std::size_t find_or_add(std::string_view id, std::uint64_t hash);
  std::size_t column_of(const SampleKey& key);
  /// Returns the columns of keys of that name.
  std::vector<std::size_t> columns_named(std::string_view name) const;
  /// The column in which a sample has a key of that name; null where it has none.
  const Column* column_with(std::size_t sample, std::string_view key) const;
  void check_bound(std::uint64_t bytes) const;
  void put(const SampleBatch& samples, Payload payload);
  /// Returns the items of a key for get().
  void add_key(SampleBatch& batch, std::span<const std::size_t> samples, const std::string& name,
               bool allow_absent) const;
  // None of these can fail.
  void put_values(std::size_t sample, PlainValues values);
  void put_entry(std::size_t sample, std::size_t column, Entry entry);
  void replace(Column& column, std::size_t sample, Entry by);
  void drop_unused_columns();

  std::vector<BufferPool::Buffer> allocate_all(std::span<const std::uint64_t> sizes);
  BufferPool::Buffer allocate_piece(std::uint64_t bytes);

  SampleStoreOptions options_;
  BufferPool memory_;
  std::weak_ptr<Engine> engine_;  ///< whose memory is taken first
  mutable std::mutex mutex_;
  IdTable ids_;
  std::vector<PlainValues> values_;  ///< by sample
  std::vector<Column> columns_;
  std::uint64_t bytes_ = 0;
  std::uint64_t version_ = 0;  ///< the empty store's, as it was made
};

}  // namespace levada
