// A table of which rank holds which key of which sample, with lengths and dtypes: all that planning needs.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/exchange/sample_batch.h"

namespace levada {

/// Selects tokens of each sequence for context parallelism: part `index` of `count`. Consecutive parts are as equal as
/// whole tokens allow; a zigzag part is chunks index and 2*count-1-index of 2*count such chunks.
struct SequencePart {
  std::uint16_t index = 0;
  std::uint16_t count = 1;
  bool zigzag = false;

  bool is_whole() const { return count == 1; }
  auto operator<=>(const SequencePart&) const = default;
  /// Returns "whole", or text such as "part 1 of 4" or "zigzag part 1 of 4".
  std::string to_string() const;
};
/// Tokens [begin, end) of a sequence, then [second_begin, second_end), which is empty unless the part is a zigzag one.
struct TokenRanges {
  std::int64_t begin = 0, end = 0;
  std::int64_t second_begin = 0, second_end = 0;
  std::int64_t tokens() const { return end - begin + second_end - second_begin; }
};
/// Returns the tokens of the part, for a sequence of `length` tokens.
TokenRanges tokens_in(const SequencePart& part, std::int64_t length);
/// Returns the bytes of that part of sequences of `lengths`.
std::uint64_t bytes_of(const SampleKey& key, const SequencePart& part, std::span<const std::int64_t> lengths);

/// The number of a sample that no rank holds.
inline constexpr std::uint32_t no_sample = UINT32_MAX;

/// Exclusive upper bound of rank numbers.
inline constexpr int max_ranks = 1 << 20;
/// A rank, and the part that it holds or should hold.
struct Holder {
  int rank = 0;
  SequencePart part = {};
  auto operator<=>(const Holder&) const = default;
};
/// One key of one sample as a rank has it. Borrows everything.
struct KeyHolding {
  std::string_view id;
  const PlainValues& values;
  const SampleKey& key;
  std::span<const std::int64_t> lengths;  ///< lengths of the whole sequences
  SequencePart part = {};                 ///< the part of them that the rank has
};
/// Ascending by rank, each rank at most once.
using Holders = std::vector<Holder>;

/// A table of samples and their keys: lengths, plain values, and the ranks that hold each key of each sample. It never
/// holds payload. Either one controller maintains it, notified of each change, or every rank builds it from all ranks'
/// holdings, in any order: equal content results in equal plans. A value type; copies share memory until one is
/// changed. Designed for millions of samples: about 24 bytes per sample and 16 per key of one sequence, plus the ids,
/// and 48 more per sample if any has plain values. Samples are numbered from 0 to size()-1 in the order of insertion,
/// and so are keys; an update may change the numbers. Holds up to 65,535 keys.
class SampleDirectory {
 public:
  SampleDirectory();

  /// Adds all keys of `samples` (a meta is enough), or that part of each, to the holdings of `rank`. Lengths are those
  /// of whole sequences. A key that is absent for an id is not held. Throws InvalidArgument, naming id, key and ranks,
  /// and changes nothing, if a key has another dtype or trailing shape than on other ranks or for other samples of
  /// `rank`, or if lengths or a plain value differ from those of the same sample on another rank.
  void add(int rank, const SampleBatch& samples, const SequencePart& part = {});
  /// Same, for one key of one sample.
  void add(int rank, const KeyHolding& holding);
  /// Removes these samples from the holdings of `rank`. Ignores unknown ids. Drops samples and keys that no rank holds
  /// any more.
  void remove(int rank, std::span<const std::string> ids);
  void clear(int rank);
  /// Adds everything in `other`. Throws as add() does, possibly after adding some of it.
  void merge(const SampleDirectory& other);

  std::size_t size() const;
  std::optional<std::size_t> find(std::string_view id) const;
  /// Appends the number of each of these ids, or no_sample.
  void find_all(std::span<const std::string> ids, std::vector<std::uint32_t>& numbers) const;
  bool contains(std::string_view id) const { return find(id).has_value(); }
  std::string_view id(std::size_t sample) const;
  /// Returns the XXH3-64 of the id, which orders samples independently of insertion.
  std::uint64_t id_hash(std::size_t sample) const;
  const PlainValues& values(std::size_t sample) const;

  /// Returns all keys, by number.
  std::span<const SampleKey> keys() const;
  std::optional<std::size_t> find_key(std::string_view name) const;
  /// Returns the ranks that hold the key; empty if none does.
  const Holders& holders(std::size_t sample, std::size_t key) const;
  /// Returns the number of the list of holders. Equal numbers mean equal lists; 0 is the empty one.
  std::uint32_t holder_set(std::size_t sample, std::size_t key) const;
  const Holders& holder_set_at(std::uint32_t set) const;
  /// Returns the lengths of whole sequences. Requires a key that some rank holds. Valid until the directory changes or
  /// is destroyed.
  std::span<const std::int64_t> lengths(std::size_t sample, std::size_t key) const;
  std::int64_t tokens(std::size_t sample, std::size_t key) const;
  /// Returns all samples as a batch without data.
  SampleBatch meta() const;

  /// Serializes the directory; samples keep their order. decode() reads untrusted bytes and throws CorruptMessage.
  Bytes encode() const;
  static SampleDirectory decode(ByteView bytes);

 private:
  friend class HoldingsTable;
  class State;
  State& own();
  /// Replaces the table with a copy without dead entries, if there are many.
  void compact();
  /// Merges one key's column of `from`, whose samples are `rows` here.
  static void merge_key(State& state, const State& from, std::size_t from_key, std::span<const std::size_t> rows);
  std::shared_ptr<State> state_;
};

}  // namespace levada
