// The memory that all ranks of a host write: which ranks live and sleep, rings of descriptors, acknowledgments.
// A faulty peer may have written anything in it: whatever is read from it is checked before it is used.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "levada/base/bytes.h"
#include "levada/engine/engine.h"
#include "levada/engine/group.h"
#include "levada/engine/shm/futex.h"

namespace levada::shm {

inline constexpr int max_ranks = 1024;
inline constexpr std::uint64_t page_bytes = 4096;

/// What crosses a ring: a message, or a Notice. `key` names a channel, or a group where the notice concerns one.
struct Descriptor {
  enum class Kind : std::uint32_t { message = 0, opened, sender_closed, receiver_closed, staying, left };

  std::uint64_t key = 0;
  std::uint64_t offset = 0;  ///< in the sender's data; of notices of a channel: its group
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;  ///< opened: the channel's window
  std::uint32_t generation : 28 = 0;
  Kind kind : 4 = Kind::message;
};
static_assert(sizeof(Descriptor) == 32);

/// One producer, one consumer. Each passes its own count, which it never reads back from memory that others write.
class Ring {
 public:
  static constexpr std::uint64_t capacity = 512;
  /// Entries that messages leave free for notices.
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

/// What one receiver has done with one message: a word in which the message's generation stands beside the step, so
/// that a late acknowledgment cannot affect the block's next message.
class SlotAck {
 public:
  enum Step : std::uint32_t { returned = 0, published = 1, received = 2 };

  explicit SlotAck(FutexWord& word) : word_(&word) {}

  void publish(std::uint32_t generation) { word_->store(pack(generation, published), std::memory_order_relaxed); }
  /// False when the message is not there to be received (any more).
  bool receive(std::uint32_t generation) { return move(generation, published, received); }
  /// Of a message not received: as if it had been.
  bool drop(std::uint32_t generation) { return move(generation, published, returned); }
  bool give_back(std::uint32_t generation) { return move(generation, received, returned); }
  /// Any other word counts as returned, even one that a faulty rank wrote.
  Step step(std::uint32_t generation) const {
    const std::uint32_t word = word_->load(std::memory_order_seq_cst);
    if (word == pack(generation, published)) return published;
    return word == pack(generation, received) ? received : returned;
  }

 private:
  static std::uint32_t pack(std::uint32_t generation, Step step) { return generation << 2 | step; }
  bool move(std::uint32_t generation, Step from, Step to) {
    std::uint32_t expected = pack(generation, from);
    return word_->compare_exchange_strong(expected, pack(generation, to), std::memory_order_seq_cst);
  }

  FutexWord* word_;
};
inline constexpr std::uint32_t generations = 1u << 28;

/// Sleepers are woken for a message or room in a channel, by its key, or for memory.
inline constexpr WakeMask wake_for_memory = 1u << 31;
inline constexpr WakeMask wake_for(std::uint64_t channel) {
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
  std::atomic<std::uint32_t> number;  ///< 1 + how many its rank had written before; 0 while it is written
  std::uint64_t group;
  std::uint32_t order;  ///< among aborts and deaths
  std::uint32_t kind;   ///< an ErrorKind
  std::uint32_t size;
  std::array<char, max_detail_bytes> detail;
};

/// A counter on which threads sleep.
struct Doorbell {
  FutexWord count;
  /// Threads that sleep on it, or are about to. One that was killed meanwhile stays counted: from then on each ring()
  /// makes a system call, which takes less than a microsecond and wakes nobody.
  FutexWord sleepers;

  /// Wakes the threads that sleep for one of the bits, if there are any.
  void ring(WakeMask mask = wake_all);
};

/// A rank's own words. Zero to begin with.
struct RankPage {
  static constexpr std::size_t abort_records = 64;
  static constexpr std::size_t boards = 16;

  /// The thread that stands for this rank (its id, as the kernel's robust futexes want it); 0 before and after.
  alignas(64) FutexWord alive;
  alignas(64) Doorbell own;           ///< this rank's threads sleep on it, others ring it
  FutexWord wants_space;              ///< threads that sleep on it for room or memory
  alignas(64) Doorbell sends;         ///< threads of all ranks that wait for messages of this one alone sleep on it
  std::atomic<std::int32_t> process;  ///< its id, for people
  std::atomic<std::uint32_t> keeps_pages;  ///< not 0: its memory's pages are not given back to the system
  alignas(64) FutexWord left;              ///< by its own will
  FutexWord gone;                          ///< has left and holds no lease any more
  FutexWord dead;                          ///< 1 + its order: ended without leaving; set by any rank that sees it
  using Ranks = std::array<std::atomic<std::uint64_t>, max_ranks / 64>;
  alignas(64) Ranks pending;  ///< ranks whose rings have something for this one
  Ranks senders;              ///< ranks that have ever had
  /// The statuses of this rank in its groups: the last ones in which it has posted.
  struct BoardSlot {
    std::atomic<std::uint64_t> group;
    Board board;
  };
  alignas(64) std::array<BoardSlot, boards> board;
  alignas(64) FutexWord aborts;                  ///< records written
  std::array<AbortRecord, abort_records> abort;  ///< the last ones, each written before it is counted
};

/// Where all of it lies in the control memory of `size` ranks: a sparse file, of which only what is used takes memory.
class Control {
 public:
  Control(std::byte* memory, int size) : memory_(memory), size_(size) {}

  /// Bytes that `size` ranks need.
  static std::uint64_t bytes(int size);
  /// Messages that a rank may have published and not yet got back, free blocks in its pool included.
  static std::uint32_t slots(int size);

  int size() const { return size_; }
  /// Grows whenever a rank dies, leaves or aborts: look again.
  FutexWord& alarm() const { return *reinterpret_cast<FutexWord*>(memory_); }
  RankPage& page(int rank) const;
  Ring ring(int from, int to) const;
  SlotAck ack(int sender, std::uint32_t slot, int receiver) const;

  /// Whether none of `receivers` has still to go beyond `step` with that message. Of those that go beyond it at the
  /// same time, the last one sees so.
  bool all_beyond(SlotAck::Step step, int sender, std::uint32_t slot, std::uint32_t generation,
                  std::span<const int> receivers) const;

  /// A number that is larger for what happens later.
  std::uint32_t next_order() const { return alarm().fetch_add(1, std::memory_order_seq_cst) + 1; }
  /// Makes all ranks check again which ranks live.
  void raise_alarm() const;
  /// `rank`'s thread is no more: notes whether that was a death, and raises the alarm if nobody has yet.
  void note_end(int rank) const;
  /// Notes the deaths that the kernel has marked and no watcher has noticed.
  void find_deaths() const;

 private:
  std::byte* memory_;
  int size_;
};

}  // namespace levada::shm
