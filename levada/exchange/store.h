// The samples that one rank holds.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levada/exchange/ownership.h"
#include "levada/exchange/sample_batch.h"
#include "levada/exchange/sample_memory.h"

namespace levada {

struct SampleStoreOptions {
  /// Most bytes of tensors; what would go beyond is refused with InvalidArgument, and nothing of that call is stored.
  std::uint64_t max_bytes = UINT64_MAX;
};

/// Samples by id, each with its keys, in memory of their own: what is stored is copied, so that a store never holds on
/// to a caller's or a sender's memory. What get() gives shares the memory with the store, is not to be written, and
/// stays as it is when the store changes. Any thread. All that throws, throws InvalidArgument and names id and key.
class SampleStore {
 public:
  explicit SampleStore(SampleStoreOptions options = {}) : options_(options) {}

  /// New samples. Throws for an id that is here already, for a meta, and beyond the bound; nothing is stored then.
  void store(const SampleBatch& samples);
  /// Adds keys and values to samples that are here, replacing what they have. Throws for an id that is not here, for a
  /// meta, and beyond the bound; nothing has changed then.
  void update(const SampleBatch& samples);
  /// These samples, in this order, with these keys (all that any of them has where `keys` is empty); a key that a
  /// sample lacks is absent for it. Throws for an id that is not here, for a key that none of them has, and for one
  /// whose dtype or trailing shape differ among them.
  SampleBatch get(std::span<const std::string> ids, std::span<const std::string> keys = {}) const;
  bool has(std::string_view id) const;
  bool has(std::string_view id, std::string_view key) const;
  /// Which tokens are here of a key; empty where it is not.
  std::optional<SequencePart> part(std::string_view id, std::string_view key) const;
  /// Ids that are not here are ignored.
  void remove(std::span<const std::string> ids);
  /// Removes all, and gives memory kept for later samples back.
  void clear();

  std::size_t size() const;
  std::uint64_t bytes() const;
  std::uint64_t max_bytes() const { return options_.max_bytes; }
  /// Ascending.
  std::vector<std::string> ids() const;

  /// What `rank`, which has this store, tells others: all samples, or some of them (those here) and some keys.
  Ownership ownership(int rank) const;
  Ownership ownership(int rank, std::span<const std::string> ids, std::span<const std::string> keys) const;

  /// One key of one sample.
  struct Piece {
    SampleKey key;
    std::vector<std::int64_t> lengths = {};  ///< of the whole sequences
    SequencePart part = {};                  ///< what of them is here
    SampleBytes bytes = {};
  };
  std::optional<Piece> find(std::string_view id, std::string_view key) const;

  /// What has arrived of one sample's key. Borrows all but its bytes.
  struct Arrival {
    std::string_view id;
    const PlainValues& values;
    const SampleKey& key;
    std::span<const std::int64_t> lengths;  ///< of the whole sequences
    SequencePart part;
    SampleBytes bytes;
  };
  /// Takes over what has arrived, complete and in memory of allocate(), without a copy. Whoever has the whole, or that
  /// part, keeps it. Beyond the bound it throws, and takes nothing. Quickest where keys of one sample are neighbours.
  void take_over(std::span<Arrival> arrivals);
  /// Memory for what is to be taken over; used again when samples go.
  SampleMemory::Piece allocate(std::uint64_t bytes) { return memory_.allocate(bytes); }

 private:
  struct Entry {
    const SampleKey* key = nullptr;  ///< in keys_
    std::vector<std::int64_t> lengths;
    SequencePart part;
    SampleBytes bytes;
    std::uint64_t size = 0;
  };
  struct Sample {
    std::vector<Entry> entries;
    PlainValues values;
    const Entry* find(std::string_view key) const;
  };
  struct IdHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view id) const { return std::hash<std::string_view>()(id); }
  };

  const Sample& sample_of(std::string_view id) const;
  const SampleKey* known_key(const SampleKey& key);
  /// How the bytes here would change.
  std::uint64_t bytes_with(const SampleBatch& samples) const;
  void check_bound(std::uint64_t bytes) const;
  void put(const SampleBatch& samples);
  void put_entry(Sample& sample, Entry entry);

  SampleStoreOptions options_;
  SampleMemory memory_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Sample, IdHash, std::equal_to<>> samples_;
  std::deque<SampleKey> keys_;  ///< each one once; entries point to them
  std::uint64_t bytes_ = 0;
};

}  // namespace levada
