// Who holds which key of which sample, and what it is like there: all that planning needs to know.
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

/// Which tokens of each sequence: part `index` of `count`, for context parallelism. Consecutive parts are as equal as
/// whole tokens allow; a zigzag part is chunks index and 2*count-1-index of 2*count such chunks.
struct SequencePart {
  std::uint16_t index = 0;
  std::uint16_t count = 1;
  bool zigzag = false;

  bool is_whole() const { return count == 1; }
  auto operator<=>(const SequencePart&) const = default;
  /// "part 1 of 4", "zigzag part 1 of 4", "whole".
  std::string to_string() const;
};
/// Tokens [begin, end) of a sequence, then [second_begin, second_end), which is empty unless the part is a zigzag one.
struct TokenRanges {
  std::int64_t begin = 0, end = 0;
  std::int64_t second_begin = 0, second_end = 0;
  std::int64_t tokens() const { return end - begin + second_end - second_begin; }
};
/// The tokens of a sequence of `length` that are in the part.
TokenRanges tokens_in(const SequencePart& part, std::int64_t length);
/// Of that part of sequences of `lengths`.
std::uint64_t bytes_of(const SampleKey& key, const SequencePart& part, std::span<const std::int64_t> lengths);

/// The number of a sample that no rank holds.
inline constexpr std::uint32_t no_sample = UINT32_MAX;

/// Ranks are below this.
inline constexpr int max_ranks = 1 << 20;
/// A rank and what it holds, or is to hold.
struct Holder {
  int rank = 0;
  SequencePart part = {};
  auto operator<=>(const Holder&) const = default;
};
/// One key of one sample, as a rank has it. Borrows all.
struct SampleFact {
  std::string_view id;
  const PlainValues& values;
  const SampleKey& key;
  std::span<const std::int64_t> lengths;  ///< of the whole sequences
  SequencePart part = {};                 ///< what of them it has
};
/// Ascending, no rank twice.
using Holders = std::vector<Holder>;

/// A table of samples and their keys: lengths, plain values, and the ranks that hold each key of each sample. A value
/// that updates change; it never holds payload. One controller that is notified of each change may maintain it, or all
/// ranks make it from the holdings of each, in any order: equal content results in equal plans. Copies share memory
/// until one is changed. Made for millions of samples: about 24 bytes per sample and 16 per key of one sequence,
/// besides the ids, and 48 more per sample where any has plain values. Samples are numbered from 0 to size()-1 in the
/// order of their insertion, and so are keys; an update may change the numbers. It has room for 65,535 keys.
class SampleDirectory {
 public:
  SampleDirectory();

  /// `rank` now holds all that `samples` (a meta will do) has, or that part of it: lengths are those of the whole. A
  /// key that is absent for an id is not held. Throws InvalidArgument where dtype, trailing shape, lengths or a plain
  /// value are not those that other ranks say of the same sample and key, or where `rank` itself has that key of other
  /// samples in another dtype or shape, naming id, key and ranks; nothing has changed then.
  void add(int rank, const SampleBatch& samples, const SequencePart& part = {});
  /// The same of one key of one sample.
  void add(int rank, const SampleFact& fact);
  /// `rank` no longer holds them; unknown ids are ignored. A sample, and a key, that nobody holds is forgotten.
  void remove(int rank, std::span<const std::string> ids);
  void clear(int rank);
  /// Everything that `other` knows, beside what is known here. Throws as add() does, and may then be half done.
  void merge(const SampleDirectory& other);

  std::size_t size() const;
  std::optional<std::size_t> find(std::string_view id) const;
  /// Appends the number of each of these ids, or no_sample.
  void find_all(std::span<const std::string> ids, std::vector<std::uint32_t>& numbers) const;
  bool contains(std::string_view id) const { return find(id).has_value(); }
  std::string_view id(std::size_t sample) const;
  /// XXH3-64 of the id: orders samples in a way that does not depend on how they came in.
  std::uint64_t id_hash(std::size_t sample) const;
  const PlainValues& values(std::size_t sample) const;

  /// By number.
  std::span<const SampleKey> keys() const;
  std::optional<std::size_t> find_key(std::string_view name) const;
  /// Nobody: an empty list.
  const Holders& holders(std::size_t sample, std::size_t key) const;
  /// Equal numbers are equal lists; 0 is nobody.
  std::uint32_t holder_set(std::size_t sample, std::size_t key) const;
  const Holders& holder_set_at(std::uint32_t set) const;
  /// Of a key that somebody holds; valid until this changes or goes.
  std::span<const std::int64_t> lengths(std::size_t sample, std::size_t key) const;
  std::int64_t tokens(std::size_t sample, std::size_t key) const;
  /// All of it without data.
  SampleBatch meta() const;

  /// Bytes that travel; decode() reads bytes that may lie and throws CorruptMessage. Samples keep their order.
  Bytes encode() const;
  static SampleDirectory decode(ByteView bytes);

 private:
  friend class HoldingsTable;
  class State;
  State& own();
  /// Makes a copy without what is dead, where that is much.
  void compact();
  /// One key's column of `from`, whose samples are `rows` here.
  static void merge_key(State& state, const State& from, std::size_t from_key, std::span<const std::size_t> rows);
  std::shared_ptr<State> state_;
};

}  // namespace levada
