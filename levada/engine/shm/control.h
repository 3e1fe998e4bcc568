// The memory that all ranks of a host write: who lives, who sleeps, rings of descriptors, what has been given back.
// Everything in it may have been written by a peer gone wrong: what is read from it is checked before it is used.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levada/base/bytes.h"
#include "levada/engine/engine.h"
#include "levada/engine/shm/futex.h"

namespace levada::shm {

inline constexpr int max_ranks = 1024;
inline constexpr std::uint64_t page_bytes = 4096;

/// What crosses a ring. `key` names a channel, or for group_entered and group_left a group.
struct Descriptor {
  enum class Kind : std::uint32_t {
    message = 1,
    sender_closed = 2,
    taker_closed = 3,
    group_entered = 4,
    group_left = 5
  };

  std::uint64_t key = 0;
  std::uint64_t offset = 0;  ///< in the sender's data
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;
  std::uint32_t generation : 28 = 0;
  Kind kind : 4 = Kind::message;
};
static_assert(sizeof(Descriptor) == 32);

/// One producer, one consumer; each passes its own count, which it does not read back from memory that others write.
class Ring {
 public:
  static constexpr std::uint64_t capacity = 512;
  /// Entries that messages leave free, so that a close finds room.
  static constexpr std::uint64_t reserve = 64;

  struct alignas(64) State {
    alignas(64) std::atomic<std::uint64_t> head;
    alignas(64) std::atomic<std::uint64_t> tail;
    alignas(64) std::array<Descriptor, capacity> entries;
  };

  explicit Ring(State& state) : state_(&state) {}

  /// Entries free; empty when the consumer's count makes no sense.
  std::optional<std::uint64_t> room(std::uint64_t sent) const {
    const std::uint64_t used = sent - state_->tail.load(std::memory_order_seq_cst);
    if (used > capacity) return std::nullopt;
    return capacity - used;
  }
  /// Only where room() is not 0.
  void push(std::uint64_t& sent, const Descriptor& descriptor) {
    state_->entries[sent % capacity] = descriptor;
    state_->head.store(++sent, std::memory_order_seq_cst);
  }
  /// Whether the producer may have found no room for messages before the consumer had taken `taken` of its entries.
  bool may_have_been_full(std::uint64_t received, std::uint64_t taken) const {
    return state_->head.load(std::memory_order_seq_cst) - (received - taken) >= capacity - reserve;
  }
  /// Entries waiting; empty when the producer's count makes no sense.
  std::optional<std::uint64_t> waiting(std::uint64_t received) const {
    const std::uint64_t count = state_->head.load(std::memory_order_seq_cst) - received;
    if (count > capacity) return std::nullopt;
    return count;
  }
  Descriptor at(std::uint64_t index) const { return state_->entries[index % capacity]; }
  void pop_to(std::uint64_t received) { state_->tail.store(received, std::memory_order_seq_cst); }

 private:
  State* state_;
};

/// What one consumer has done with one message: a word in which the message's generation stands beside the step, so
/// that a late return cannot touch the block's next message.
class Return {
 public:
  enum Step : std::uint32_t { returned = 0, published = 1, taken = 2 };

  explicit Return(Word& word) : word_(&word) {}

  void publish(std::uint32_t generation) { word_->store(pack(generation, published), std::memory_order_relaxed); }
  /// False when the message is not there to be taken (any more).
  bool take(std::uint32_t generation) { return move(generation, published, taken); }
  /// Of a message not taken: as if it had been.
  bool drop(std::uint32_t generation) { return move(generation, published, returned); }
  bool give_back(std::uint32_t generation) { return move(generation, taken, returned); }
  /// Any other word, whoever wrote it, counts as returned.
  Step step(std::uint32_t generation) const {
    const std::uint32_t word = word_->load(std::memory_order_seq_cst);
    if (word == pack(generation, published)) return published;
    return word == pack(generation, taken) ? taken : returned;
  }

 private:
  static std::uint32_t pack(std::uint32_t generation, Step step) { return generation << 2 | step; }
  bool move(std::uint32_t generation, Step from, Step to) {
    std::uint32_t expected = pack(generation, from);
    return word_->compare_exchange_strong(expected, pack(generation, to), std::memory_order_seq_cst);
  }

  Word* word_;
};
inline constexpr std::uint32_t generations = 1u << 28;

/// What sleepers of a rank are woken for: a message or room in a channel, by its key; memory.
inline constexpr Topics memory_topic = 1u << 31;
inline constexpr Topics topic_of(std::uint64_t channel) {
  return 1u << (channel % 31);
}

/// A Status that one process writes and others read without a lock.
class Board {
 public:
  void post(const Status& status);
  Status read() const;

 private:
  static constexpr std::size_t words = sizeof(Status) / 8;
  std::atomic<std::uint64_t> version_;
  std::array<std::atomic<std::uint64_t>, words> words_;
};

/// Why a group ended. Group 0: all of them.
struct AbortRecord {
  std::uint64_t group;
  std::uint32_t order;  ///< among aborts and deaths
  std::int32_t rank;    ///< who aborted, in the group's numbering
  std::uint32_t size;
  std::array<char, 200> reason;
};

/// A rank's own words. Zero to begin with.
struct RankPage {
  static constexpr std::size_t abort_records = 64;

  /// The thread that stands for this rank (its id, as the kernel's robust futexes want it); 0 before and after.
  alignas(64) Word alive;
  alignas(64) Word doorbell;          ///< counts; slept on
  Word sleepers;                      ///< threads that sleep on it, or are about to
  Word wants_space;                   ///< those that wait for room or memory
  std::atomic<std::int32_t> process;  ///< its id, for people
  alignas(64) Word left;              ///< by its own will
  Word gone;                          ///< has left and holds no lease any more
  Word dead;                          ///< 1 + its order: ended without leaving; set by whoever sees it
  alignas(64) std::array<std::atomic<std::uint64_t>, max_ranks / 64> pending;  ///< ranks whose rings have something
  alignas(64) Board board;
  alignas(64) Word aborts;                       ///< records written
  std::array<AbortRecord, abort_records> abort;  ///< each written once, before it is counted
};

/// Where all of it lies in the control memory of `size` ranks: a sparse file, of which only what is used takes memory.
class Control {
 public:
  Control(std::byte* memory, int size) : memory_(memory), size_(size) {}

  /// Bytes that `size` ranks need.
  static std::uint64_t bytes(int size);
  /// Messages that a rank may have outside, free blocks in its pool included.
  static std::uint32_t slots(int size);

  int size() const { return size_; }
  /// Grows whenever a rank dies, leaves or aborts: look again.
  Word& alarm() const { return *reinterpret_cast<Word*>(memory_); }
  RankPage& page(int rank) const;
  Ring ring(int from, int to) const;
  Return returns(int sender, std::uint32_t slot, int consumer) const;

  /// Whether no consumer of that message has still to go beyond `step`. Of those that go beyond it at the same time,
  /// the last one sees so.
  bool all_beyond(Return::Step step, int sender, std::uint32_t slot, std::uint32_t generation) const;

  /// Wakes `rank`'s threads that sleep for one of `topics`, if it has any.
  void ring_doorbell(int rank, Topics topics = all_topics) const;
  /// A number that is larger for what happens later.
  std::uint32_t next_order() const { return alarm().fetch_add(1, std::memory_order_seq_cst) + 1; }
  /// Makes all ranks look again at who lives.
  void raise_alarm() const;
  /// `rank`'s thread is no more: notes whether that was a death, and raises the alarm if nobody has yet.
  void note_end(int rank) const;
  /// Notes the deaths that the kernel has marked and whoever should have seen them has not.
  void find_deaths() const;

 private:
  std::byte* memory_;
  int size_;
};

}  // namespace levada::shm
