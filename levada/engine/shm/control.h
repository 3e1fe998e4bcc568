// The memory that all ranks of a host write to: which ranks are alive or asleep, rings of descriptors, acknowledgments.
// A faulty peer may write anything to it, so every value read from it is checked before use.
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

/// An entry of a ring: a message or a Notice. `key` identifies a channel, or a group if the notice concerns one.
struct Descriptor {
  enum class Kind : std::uint32_t { message = 0, opened, sender_closed, receiver_closed, staying, left };

  std::uint64_t key = 0;
  std::uint64_t offset = 0;  ///< offset in the sender's data; for a notice of a channel: its group
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;  ///< for `opened`: the channel's window
  std::uint32_t generation : 28 = 0;
  Kind kind : 4 = Kind::message;
};
static_assert(sizeof(Descriptor) == 32);

/// A queue with one producer and one consumer. Each side keeps its own count and passes it in; it never reads the count
/// back from memory that other ranks can write.
class Ring {
 public:
  static constexpr std::uint64_t capacity = 512;
  /// Number of entries that messages leave free for notices.
  static constexpr std::uint64_t reserve = 64;

  struct alignas(64) State {
    alignas(64) std::atomic<std::uint64_t> head;
    alignas(64) std::atomic<std::uint64_t> tail;
    alignas(64) std::array<Descriptor, capacity> entries;
  };

  explicit Ring(State& state) : state_(&state) {}

  /// Returns the number of free entries; nothing if the consumer's count is invalid.
  std::optional<std::uint64_t> room(std::uint64_t sent) const {
    const std::uint64_t used = sent - state_->tail.load(std::memory_order_seq_cst);
    if (used > capacity) return std::nullopt;
    return capacity - used;
  }
  /// Requires room() > 0.
  void push(std::uint64_t& sent, const Descriptor& descriptor) {
    state_->entries[sent % capacity] = descriptor;
    state_->head.store(++sent, std::memory_order_seq_cst);
  }
  /// Returns whether the producer may have found no room for a message before the consumer took `taken` entries.
  bool may_have_been_full(std::uint64_t received, std::uint64_t taken) const {
    return state_->head.load(std::memory_order_seq_cst) - (received - taken) >= capacity - reserve;
  }
  /// Returns the number of waiting entries; nothing if the producer's count is invalid.
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

/// One receiver's progress with one message. The word holds the message's generation and the step, so that a late
/// acknowledgment cannot affect the next message in the block.
class SlotAck {
 public:
  enum Step : std::uint32_t { returned = 0, published = 1, received = 2 };

  explicit SlotAck(FutexWord& word) : word_(&word) {}

  void publish(std::uint32_t generation) { word_->store(pack(generation, published), std::memory_order_relaxed); }
  /// Returns false if the message cannot, or can no longer, be received.
  bool receive(std::uint32_t generation) { return move(generation, published, received); }
  /// Marks a message that was not received as returned.
  bool drop(std::uint32_t generation) { return move(generation, published, returned); }
  bool mark_returned(std::uint32_t generation) { return move(generation, received, returned); }
  /// Returns the step. A word of another generation, or one that a faulty rank wrote, counts as returned.
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

/// The bits for which sleepers are woken: for a message or for room on a channel, by its key, or for memory.
inline constexpr WakeMask wake_for_memory = 1u << 31;
inline constexpr WakeMask wake_for(std::uint64_t channel) {
  return 1u << (channel % 31);
}

/// A Status that one process writes and others read without locking.
class Board {
 public:
  void post(const Status& status);
  Status read() const;

 private:
  static constexpr std::size_t words = sizeof(Status) / 8;
  std::atomic<std::uint64_t> version_;
  std::array<std::atomic<std::uint64_t>, words> words_;
};

/// Why a group ended. Group 0 means all groups.
struct AbortRecord {
  std::atomic<std::uint32_t> number;  ///< 1 + the number of records that its rank had written before; 0 while it is
                                      ///< being written
  std::uint64_t group;
  std::uint32_t order;  ///< order among aborts and deaths
  std::uint32_t kind;   ///< an ErrorKind
  std::uint32_t size;
  std::array<char, max_detail_bytes> detail;
};

/// A counter that threads sleep on.
struct Doorbell {
  FutexWord count;
  /// Number of threads that sleep on the counter or are about to. A killed thread remains counted; each later ring()
  /// then makes a system call that wakes no thread, which takes less than a microsecond.
  FutexWord sleepers;

  /// Wakes the threads that sleep for any of the bits in `mask`, if there are any.
  void ring(WakeMask mask = wake_all);
};

/// One rank's part of the control memory. Initially zero.
struct RankPage {
  static constexpr std::size_t abort_records = 64;
  static constexpr std::size_t boards = 16;

  /// Id of the thread that represents this rank, in the form that the kernel's robust futexes require; 0 before the
  /// thread starts and after it ends.
  alignas(64) FutexWord alive;
  alignas(64) Doorbell own;                ///< this rank's threads sleep on it; other ranks ring it
  FutexWord wants_space;                   ///< number of threads that sleep on `own` for room or memory
  alignas(64) Doorbell sends;              ///< threads of all ranks that wait only for this rank's messages sleep on it
  std::atomic<std::int32_t> process;       ///< process id, for error messages
  std::atomic<std::uint32_t> keeps_pages;  ///< nonzero if this rank's pages must not be returned to the system
  alignas(64) FutexWord left;              ///< whether it has left voluntarily
  FutexWord gone;                          ///< whether it has left and holds no leases
  FutexWord dead;  ///< 1 + its order, if it ended without leaving; set by any rank that detects this
  using Ranks = std::array<std::atomic<std::uint64_t>, max_ranks / 64>;
  alignas(64) Ranks pending;  ///< ranks whose rings have entries for this one
  Ranks senders;              ///< ranks whose rings have ever had entries
  /// The statuses of this rank in the groups in which it posted last.
  struct BoardSlot {
    std::atomic<std::uint64_t> group;
    Board board;
  };
  alignas(64) std::array<BoardSlot, boards> board;
  alignas(64) FutexWord aborts;                  ///< number of records written
  std::array<AbortRecord, abort_records> abort;  ///< the last records, each written before it is counted
};

/// The layout of the control memory of `size` ranks, a sparse file in which only the used pages take memory.
class Control {
 public:
  Control(std::byte* memory, int size) : memory_(memory), size_(size) {}

  /// Returns the size of the control memory of `size` ranks.
  static std::uint64_t bytes(int size);
  /// Returns the maximum number of blocks of a rank: in use, published and not yet returned, or cached in its pool.
  static std::uint32_t slots(int size);

  int size() const { return size_; }
  /// Returns a counter that is incremented whenever a rank dies, leaves or aborts, so that the other ranks check again.
  FutexWord& alarm() const { return *reinterpret_cast<FutexWord*>(memory_); }
  RankPage& page(int rank) const;
  Ring ring(int from, int to) const;
  SlotAck ack(int sender, std::uint32_t slot, int receiver) const;

  /// Returns whether all `receivers` have advanced beyond `step` with that message. If several advance concurrently,
  /// the call returns true for at least the last one.
  bool all_beyond(SlotAck::Step step, int sender, std::uint32_t slot, std::uint32_t generation,
                  std::span<const int> receivers) const;

  /// Returns a number that is larger for later events.
  std::uint32_t next_order() const { return alarm().fetch_add(1, std::memory_order_seq_cst) + 1; }
  /// Makes all ranks check again which ranks are alive.
  void raise_alarm() const;
  /// Records that `rank`'s thread has ended, as a death or after leaving. Raises the alarm unless a rank already has.
  void note_end(int rank) const;
  /// Records deaths that the kernel has marked but no watcher has noticed.
  void find_deaths() const;

 private:
  std::byte* memory_;
  int size_;
};

}  // namespace levada::shm
