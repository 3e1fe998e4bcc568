// How bytes cross between ranks. Small enough to write one in a day; engine/conformance.h says in tests what is said
// here in words.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"

namespace levada {

/// Constant over an engine's life.
struct EngineInfo {
  std::string name;  ///< "inproc", "shm", ...
  int rank = 0;      ///< of this member, in the engine's own numbering
  int size = 1;
  std::vector<int> host_of;  ///< each rank's host, numbered from 0
  bool zero_copy = false;    ///< a Lease shows the sender's very Block
};

/// Memory that an engine sends without a copy: page-aligned, pooled. Goes back to the pool when destroyed, unless it
/// has been published. Movable; may be made on one thread and published or destroyed on another.
class Block {
 public:
  /// The engine's side: gets the memory back. Called once, from any thread.
  class Home {
   public:
    virtual ~Home() = default;
    virtual void give_back(std::byte* data, std::size_t size) noexcept = 0;
  };

  Block() = default;
  Block(std::span<std::byte> memory, std::shared_ptr<Home> home) : memory_(memory), home_(std::move(home)) {}
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    Block(std::move(other)).swap(*this);
    return *this;
  }
  ~Block() {
    if (home_) home_->give_back(memory_.data(), memory_.size());
  }

  /// At least as large as was asked for.
  std::span<std::byte> memory() const { return memory_; }
  explicit operator bool() const { return home_ != nullptr; }
  const std::shared_ptr<Home>& home() const { return home_; }
  /// For engines: forgets the memory without giving it back; it now belongs to the message.
  std::span<std::byte> release() {
    home_.reset();
    return std::exchange(memory_, {});
  }

 private:
  void swap(Block& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(home_, other.home_);
  }

  std::span<std::byte> memory_;
  std::shared_ptr<Home> home_;
};

/// A received message. The bytes stay as they are, and its sender's Block stays in use, until the last copy of `hold`
/// is gone; that may be on any thread, and after the engine itself is gone. Never write to the bytes, unless
/// make_private() has given them.
struct Lease {
  ByteView bytes;
  std::shared_ptr<const void> hold;
};

/// What try_receive() found: a message, the end of the channel, or neither yet.
struct Received {
  std::optional<Lease> message;
  /// No message follows: the sender has closed or left and all its messages have been received, or this rank has closed
  /// its receiving end.
  bool ended = false;
};

/// A stream of messages from one rank to a fixed set of ranks, in order, each to all of them. An engine's own
/// subclass; a member that holds one is its sender, a receiver, or both. Destroying it closes this end.
class Channel {
 public:
  Channel(int from, std::vector<int> to, int window) : from_(from), to_(std::move(to)), window_(window) {}
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int from() const { return from_; }
  const std::vector<int>& to() const { return to_; }
  int window() const { return window_; }

 private:
  int from_;
  std::vector<int> to_;
  int window_;
};

/// What a rank says of itself, for others to explain a wait by. 256 bytes.
struct Status {
  std::array<char, 24> operation{};  ///< "feed", "reading", ...; ends with a zero
  std::int64_t step = -1;
  std::int64_t since_ns = 0;      ///< steady clock of this host, when `operation` began
  std::int32_t waiting_for = -1;  ///< a rank, or -1
  std::uint32_t reserved = 0;
  std::array<char, 208> detail{};  ///< free text; ends with a zero

  static Status make(std::string_view operation, std::int64_t step, int waiting_for = -1, std::string_view detail = {});
};
static_assert(sizeof(Status) == 256);

/// What wait() is to wait for: any of these. All are levels, not edges: a condition that holds already ends the wait.
struct WaitFor {
  std::span<Channel* const> receive{};      ///< one of these has a message, or has ended
  std::span<Channel* const> publish{};      ///< one of these has room in its window
  std::size_t allocate = 0;                 ///< if not 0: try_allocate() of so many bytes may succeed
  const std::atomic<bool>* stop = nullptr;  ///< becomes true; whoever sets it calls wake()
  /// Called on the waiting thread, without locks, before it sleeps and then at least every `poll_interval`. What it
  /// throws, wait() throws. Null, or an empty function: none.
  const std::function<void()>* poll = nullptr;

  static constexpr Duration poll_interval = std::chrono::milliseconds(100);
  /// For engines, before each sleep in wait(): calls `poll`, and returns for how long the thread may sleep at most.
  Duration poll_before_sleep(Deadline deadline) const;
};

enum class Woken : std::uint8_t { ready, stopped, timeout };

/// One member's end of a group of ranks. Any thread may call; one end of a Channel is used by one thread at a time.
/// Every call but wait() returns at once. Every call throws EngineError once a member has called abort(), with its
/// reason, and PeerLost, naming the rank, once a member ended without leaving, whichever came first; messages that had
/// been published before a death can still be received, and leases stay valid. Destroying the last reference leaves the
/// group: channels close, peers are not alarmed.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;

  /// An engine over some of this one's ranks, in the order given: ranks[i] becomes rank i. Collective over those alone.
  /// `name` tells groups of the same ranks apart, and so does the order in which they are made, which is the same on
  /// all members. It stays usable when this engine's handle is gone. Throws InvalidArgument: a rank out of range or
  /// twice, or not one's own.
  virtual std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) = 0;

  /// A new stream, to be opened by its sender and all its receivers and by nobody else; members open the channels that
  /// they share in the same order, but not at the same time: messages wait for receivers that have not opened it yet.
  /// The sender may be among the receivers. At most `window` messages, for all alike, stay published and not received
  /// by all. Throws InvalidArgument: an empty set, a rank out of range or twice, not a member itself, or a window below
  /// one.
  virtual std::shared_ptr<Channel> open(int from, std::span<const int> to, int window) = 0;
  std::shared_ptr<Channel> open(int from, std::initializer_list<int> to, int window) {
    return open(from, std::span(to.begin(), to.size()), window);
  }

  /// A Block of at least `bytes`; empty when all of the engine's memory is in use at the moment. Throws InvalidArgument
  /// for more than the engine can ever give, saying how much that is.
  virtual std::optional<Block> try_allocate(std::size_t bytes) = 0;

  /// Sends the first `bytes` of `block` (at least one) to all receivers. True: the block is gone. False: the window is
  /// full, nothing happened. Throws InvalidArgument for a channel of which this rank is not the sender or that it has
  /// closed, and for a foreign block.
  virtual bool try_publish(Channel& channel, Block& block, std::size_t bytes) = 0;

  /// The next message, or the end, of the channel. Throws InvalidArgument unless this rank is a receiver. Once the
  /// group has been aborted it throws before anything else; a death it throws only where there is neither a message nor
  /// the end.
  virtual Received try_receive(Channel& channel) = 0;

  /// Lets the holder of `lease`, just received from `channel` and copied nowhere, write to its bytes, which may move:
  /// gives them. What is written shows through this lease alone, in no other lease and on no other rank, and is lost
  /// when it ends. Empty: nothing has changed, and who wants to write copies. So it is by default, and wherever the
  /// engine has nothing cheaper than a copy.
  virtual std::span<std::byte> make_private(Channel& channel, Lease& lease);

  /// Blocks until one of the conditions holds. The only call that blocks.
  virtual Woken wait(const WaitFor& conditions, Deadline deadline) = 0;
  /// Makes this process's waits on this engine look at their conditions again.
  virtual void wake() = 0;

  /// Ends the group for all its members, and the subgroups made from it, with a reason (its first 200 bytes): their
  /// calls throw EngineError from now on.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Sender: no more messages follow. Receiver: messages not yet received, and later ones, are dropped as if received.
  /// A rank that is both closes its sending end, so that it can still receive; destroying the Channel closes both.
  virtual void close(Channel& channel) noexcept = 0;

  virtual void post(const Status& status) = 0;
  /// What `rank` posted last; a blank one if nothing.
  virtual Status status(int rank) = 0;
  /// Receivers of `channel` that keep its window or its sender's memory: rank, messages not received, messages still
  /// leased.
  struct Holder {
    int rank = 0;
    int not_received = 0;
    int leased = 0;
  };
  /// Sender only: who holds what of the messages published; for explaining a wait.
  virtual std::vector<Holder> holders(Channel& channel) = 0;
  /// Bytes of this rank's blocks that are out, over all groups: allocated and not destroyed, or published and not given
  /// back by all receivers. Never throws for the group's end.
  virtual std::uint64_t memory_in_use() = 0;
  /// Gives the memory of this rank's blocks that are not out back to the system; how many bytes that were. Nothing else
  /// does before the engine's end.
  virtual std::uint64_t trim() = 0;
};

}  // namespace levada
