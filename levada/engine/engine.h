// The contract of every engine: how messages travel between ranks. The cases in engine/conformance.h test it.
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
#include "levada/base/error.h"

namespace levada {

/// The default for EngineInfo::degree.
inline constexpr int default_degree = 16;

/// Describes an engine. Does not change during the engine's lifetime.
struct EngineInfo {
  std::string name;  ///< "inproc", "shm", ...
  int rank = 0;      ///< this member's rank, in the engine's numbering
  int size = 1;
  std::vector<int> host_of;  ///< each rank's host, numbered from 0
  /// Maximum number of other hosts that a rank sends one message to. Passed to choose_engine().
  int degree = default_degree;
};

/// Page-aligned memory from an engine's pool, which the engine sends without copying. The destructor returns the memory
/// to the pool unless the block has been published. Movable. A block may be allocated on one thread and published or
/// destroyed on another.
class Block {
 public:
  /// The pool that a block's memory returns to; implemented by the engine. free_block() is called once per block, from
  /// any thread.
  class Home {
   public:
    virtual ~Home() = default;
    virtual void free_block(std::byte* data, std::size_t size) noexcept = 0;
  };

  Block() = default;
  Block(std::span<std::byte> memory, std::shared_ptr<Home> home) : memory_(memory), home_(std::move(home)) {}
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    Block(std::move(other)).swap(*this);
    return *this;
  }
  ~Block() {
    if (home_) home_->free_block(memory_.data(), memory_.size());
  }

  /// Returns the memory, which is at least as large as requested.
  std::span<std::byte> memory() const { return memory_; }
  explicit operator bool() const { return home_ != nullptr; }
  const std::shared_ptr<Home>& home() const { return home_; }
  /// Detaches the memory without returning it to the pool: the message now owns it. For engines only.
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

/// A received message. The bytes do not change, and the sender's Block stays in use, until the last copy of `hold` is
/// destroyed. `hold` may be destroyed on any thread, even after the engine. Never write to the bytes unless
/// make_private() has returned them.
struct Lease {
  ByteView bytes;
  std::shared_ptr<const void> hold;
};

/// Returns a block of at least `bytes` for an incoming message, or nothing if none is available now. The block may come
/// from any engine. Called from any thread; must neither block nor call the engine that calls it.
using Landing = std::function<std::optional<Block>(std::size_t bytes)>;

struct ChannelOptions {
  Landing landing{};      ///< receive buffers; if empty, the engine chooses the memory
  std::uint64_t tag = 0;  ///< distinguishes channels with the same sender and receivers
  /// If set by the sender, only close() closes the sending end; destroying the channel or leaving the group does not.
  /// If set by a receiver, a sender that leaves without closing does not end the channel for this receiver:
  /// is_abandoned() returns true, and calls keep waiting.
  bool must_be_closed = false;
};

/// The result of try_receive(): a message, the end of the channel, or neither yet.
struct Received {
  std::optional<Lease> message{};
  /// No message follows: the sender has closed or left, or this rank has closed its receiving end.
  bool ended = false;
  /// The block that the channel's landing returned, if any, with the message at its start. This block, not
  /// message->hold, then owns the bytes. It can be published on the engine that allocated it.
  Block landed{};
};

/// The ends of a channel that a rank may hold.
enum class End : std::uint8_t { sending, receiving };

/// A stream of messages from one rank to a fixed set of ranks. Every receiver gets every message, in the order sent.
/// Each engine has its own subclass. A member that holds a Channel is its sender, a receiver, or both. The destructor
/// closes the ends that this member holds, subject to ChannelOptions::must_be_closed.
class Channel {
 public:
  /// `owner` lets an engine recognize its own channels.
  Channel(const void* owner, int from, std::vector<int> to, int window)
      : owner_(owner), from_(from), to_(std::move(to)), window_(window) {}
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const void* owner() const { return owner_; }
  int from() const { return from_; }
  const std::vector<int>& to() const { return to_; }
  int window() const { return window_; }

 private:
  const void* owner_;
  int from_;
  std::vector<int> to_;
  int window_;
};

/// A rank's report of what it is doing, which other ranks use to explain a wait. 256 bytes.
struct Status {
  std::array<char, 24> operation{};  ///< "feed", "reading", ...; null-terminated
  std::int64_t step = -1;
  std::int64_t since_ns = 0;      ///< start of `operation`, on this host's steady clock
  std::int32_t waiting_for = -1;  ///< a rank of the group that the status is posted in, or -1
  /// Set by the engine that returns the status: how long the rank has not answered a request, or 0 if it has answered.
  std::uint32_t unanswered_ms = 0;
  std::array<char, 208> detail{};  ///< free text; null-terminated

  static Status make(std::string_view operation, std::int64_t step, int waiting_for = -1, std::string_view detail = {});
  /// Returns the Status whose bytes another process has written. Terminates its texts, and replaces a negative start,
  /// so that the time since then can be computed. `written` has the size of a Status.
  static Status read(ByteView written);
};
static_assert(sizeof(Status) == 256);

/// Why an engine's calls throw. An engine composed of others translates it to its own rank numbers.
struct Cause {
  ErrorKind kind = ErrorKind::engine;  ///< engine or timeout (an abort), peer_lost, corrupt_message, invalid_argument
  int rank = -1;  ///< the rank at fault, in the numbering of the engine that throws; -1 if not one of its ranks
  std::int64_t step = -1;  ///< the lost rank's last reported step, if known
  std::string detail{};    ///< an abort's reason, how a rank's end was detected, or the fault found

  /// Returns the cause as one sentence.
  std::string text() const;
  /// Throws the exception for `kind`: PeerLost if the rank gave up a wait (timeout).
  [[noreturn]] void raise() const;
};

/// The conditions for wait(), which returns when any of them holds. Conditions are level-triggered: one that already
/// holds ends the wait at once.
struct WaitFor {
  std::span<Channel* const> receive{};      ///< one of these has a message, or has ended
  std::span<Channel* const> publish{};      ///< try_publish() on one of these may succeed, or this rank has closed it
  std::size_t allocate = 0;                 ///< unless 0: try_allocate() of that many bytes may succeed
  const std::atomic<bool>* stop = nullptr;  ///< becomes true; its setter calls wake()
  /// Called on the waiting thread, without locks, before it sleeps and then at least every `poll_interval`. wait()
  /// propagates its exceptions. May be null or an empty function.
  const std::function<void()>* poll = nullptr;

  static constexpr Duration poll_interval = std::chrono::milliseconds(100);
  /// Calls `poll` and returns the maximum time that the thread may sleep. Engines call it before each sleep in wait().
  Duration poll_before_sleep(Deadline deadline) const;
};

/// The purpose of a block. Storage may stay allocated indefinitely, so it is limited to half of an engine's memory and
/// blocks, and never gets the last 8 MiB. The rest is reserved for messages.
enum class BlockUse : std::uint8_t { message, storage };

enum class Woken : std::uint8_t { ready, stopped, timeout };

/// One rank's membership in a group of ranks. Thread-safe, except that only one thread at a time may use each end of a
/// Channel. Only wait() and the destructor block.
///
/// The first cause() to occur ends the group. From then on, calls throw:
/// - after abort(): EngineError with the reason, or PeerLost naming the rank if that rank gave up a wait.
/// - after a member's process has ended without leaving the group: PeerLost naming the rank. Messages that it had
///   published can still be received. A member that has left the group is not lost, no matter how its process ends
///   later.
/// - after a member has sent a malformed message: CorruptMessage.
/// - after members have opened a channel with different windows: InvalidArgument.
///
/// Leases remain valid in every case. info(), shares_memory(), cause(), wake(), close(), abort(), memory_in_use() and
/// trim() never throw because the group has ended.
///
/// Destroying the last reference leaves the group: this rank's channels close, and the other members continue.
class Engine {
 public:
  virtual ~Engine() = default;  ///< may block until all messages that this rank forwards have been received

  virtual const EngineInfo& info() const = 0;
  /// Returns whether a lease of a message from `rank` points into that rank's own block rather than into a copy.
  virtual bool shares_memory(int rank) const = 0;
  /// Returns whether memory is shared with all ranks.
  bool shares_memory() const;
  /// Returns the position of `bytes` in this rank's memory, which ranks that share the memory pass to view(). Returns
  /// nothing unless all of `bytes` are in the engine's block memory.
  virtual std::optional<std::uint64_t> position_of(ByteView /*bytes*/) const { return std::nullopt; }
  /// Returns a read-only view of `bytes` bytes at `position` in `rank`'s memory, or nothing if that memory is not
  /// shared or is smaller. The bytes do not change as long as `rank` keeps their block and does not write to it. If
  /// `rank` publishes a lease whose hold owns the block, the block is kept until all receivers of that message have
  /// released their leases.
  virtual std::optional<ByteView> view(int /*rank*/, std::uint64_t /*position*/, std::uint64_t /*bytes*/) const {
    return std::nullopt;
  }

  /// Makes the owner of `bytes`, which are in a lease or in a block in use, stop returning pages of its memory to the
  /// system. Returns false, with no effect, if `bytes` are not in engine memory that can be kept this way. After true,
  /// a device driver that accesses the pages directly also sees what the owner writes to them later, as long as this
  /// engine exists.
  virtual bool keep_pages(ByteView /*bytes*/) const { return false; }

  /// Returns an engine over some of this one's ranks, in the order given: ranks[i] becomes rank i. Collective over
  /// those ranks only, but does not wait for them. Groups of the same ranks are distinguished by `name` and by the
  /// order in which they are created, which must be the same on all members. The result stays usable after this engine
  /// is destroyed. Throws InvalidArgument for a rank that is out of range or named twice, and if this rank is not in
  /// `ranks`.
  virtual std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) = 0;

  /// Opens a channel. Its sender and all its receivers call this, and no other rank does; the sender may also be a
  /// receiver. Members open channels with the same sender, receivers and tag in the same order and with the same
  /// window, but not necessarily at the same time: messages wait for receivers that have not opened the channel yet. If
  /// windows differ, the first message ends the group with InvalidArgument on all members. At most `window` messages
  /// are published and not yet received by all; if ranks forward them, the limit applies to each hop. An engine that
  /// chooses the memory in which messages arrive uses the block that `options.landing` returns, if any. Throws
  /// InvalidArgument for no receivers, for a rank that is out of range or named twice, if this rank is neither sender
  /// nor receiver, and for a window below one.
  virtual std::shared_ptr<Channel> open(int from, std::span<const int> to, int window, ChannelOptions options) = 0;
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window) { return open(from, to, window, {}); }
  std::shared_ptr<Channel> open(int from, std::initializer_list<int> to, int window) {
    return open(from, std::span(to.begin(), to.size()), window, {});
  }

  /// Returns a Block of at least `bytes`, or nothing while too much of the engine's memory is in use. Returns nothing
  /// for storage that would leave too little memory for messages, regardless of how much messages use now. Throws
  /// InvalidArgument for a message that is larger than the engine can ever allocate; the error text contains the limit.
  virtual std::optional<Block> try_allocate(std::size_t bytes, BlockUse use) = 0;
  std::optional<Block> try_allocate(std::size_t bytes) { return try_allocate(bytes, BlockUse::message); }

  /// Sends the first `bytes` bytes of `block` to all receivers; `bytes` must be at least one. Returns true if the
  /// message now owns the block, or false, with no effect, if there is no room now. A full window is one reason; an
  /// engine may have others, such as a queue that several channels share. wait() covers them all. Throws
  /// InvalidArgument unless this rank is the sender and has not closed the channel, and for a block that another engine
  /// allocated.
  virtual bool try_publish(Channel& channel, Block& block, std::size_t bytes) = 0;
  /// Sends, without copying, bytes that `lease.hold` keeps alive: a message that this or another engine has received,
  /// or a block to be published on two engines. This engine keeps `lease.hold` until no receiver needs the bytes, and
  /// perhaps until its next call that allocates, publishes a lease or asks for memory in use. Throws Unsupported if the
  /// bytes are in memory that the engine cannot send from, or in a block that it is still sending: shm sends only its
  /// own blocks, each on one channel at a time.
  virtual bool try_publish(Channel& channel, const Lease& lease) = 0;

  /// Returns the next message, the end of the channel, or neither. A message or an end that has arrived is returned
  /// even after a member was lost, but not after abort(). Throws InvalidArgument unless this rank is a receiver.
  virtual Received try_receive(Channel& channel) = 0;
  /// Returns whether the sender of a channel that must be closed has left without closing it, and this rank has
  /// received every message that it sent. Throws InvalidArgument unless this rank is a receiver.
  virtual bool is_abandoned(Channel& channel) = 0;

  /// Makes the bytes of `lease` writable and returns them. The caller has just received the lease from `channel` and
  /// has not copied it. If the bytes have moved, updates `lease`. Writes are visible only through this lease, not
  /// through other leases or on other ranks, and are lost when the lease ends. An engine that could only copy returns
  /// an empty span and changes nothing, as this default does; the caller then copies.
  virtual std::span<std::byte> make_private(Channel& channel, Lease& lease);

  /// Blocks until one of the conditions holds, or until the deadline. If the deadline has already passed, only checks
  /// the conditions, without sleeping or polling. Throws whatever the calls that it waits for would throw:
  /// InvalidArgument for a channel that this rank does not receive from or send on, and for more bytes than can ever be
  /// allocated.
  virtual Woken wait(const WaitFor& conditions, Deadline deadline) = 0;
  /// Wakes this process's threads in wait() on this engine, so that they recheck their conditions.
  virtual void wake() = 0;
  /// Sets a function that is called whenever a condition of wait() may have changed, even while no thread waits. A
  /// thread can thus wait for two engines: it calls wait() on one, and the other's hook wakes it. The hook is called
  /// from any thread, possibly inside a call to the engine; it must neither block nor call the engine. An empty
  /// function removes the hook. All groups of a rank share one hook. Throws Unsupported if the engine sees messages
  /// only while a thread waits.
  virtual void on_change(std::function<void()> hook) = 0;

  /// Ends the group, and all subgroups made from it, for all members. From then on their calls throw, with the first
  /// 600 bytes of `reason`: EngineError, or InvalidArgument if `kind` is invalid_argument. If `kind` is timeout, this
  /// rank gives up a wait, and the calls throw PeerLost with its rank; `reason` then completes the sentence that begins
  /// "rank 3 left ".
  virtual void abort(std::string_view reason, ErrorKind kind) noexcept = 0;
  void abort(std::string_view reason) noexcept { abort(reason, ErrorKind::engine); }
  /// Notifies all ranks that `rank` has ended without leaving, as observed by something other than the engine. They
  /// then treat it as lost. No effect on an engine that detects this itself, such as one between processes of one host.
  virtual void report_lost(int /*rank*/, std::string_view /*how*/) noexcept {}
  /// Returns why calls throw, or nothing if they do not.
  virtual std::optional<Cause> cause() = 0;
  /// Closes one end of a channel. Closing the sending end ends the stream of messages. Closing the receiving end ends
  /// the channel for this rank: all messages that it has not received, including later ones, count as received. No
  /// effect on an end that this rank does not hold.
  virtual void close(Channel& channel, End end) noexcept = 0;

  /// Posts this rank's status in this group. A rank has one status in each of its groups.
  virtual void post(const Status& status) = 0;
  /// Returns the last status that `rank` posted in this group, as far as this rank knows, or a blank Status if there is
  /// none.
  virtual Status status(int rank) = 0;
  /// Requests the other ranks' statuses, if the engine has to request them, and returns at once. Called by a rank whose
  /// wait is getting long, so that it can report what the others are doing. Calls in quick succession send one request.
  virtual void ask_statuses() {}
  /// A receiver that occupies the channel's window or its sender's memory.
  struct Holder {
    int rank = 0;
    int not_received = 0;  ///< number of messages
    int leased = 0;        ///< number of received messages whose leases have not ended
  };
  /// Returns which receivers hold messages of this sender, to explain a wait. For receivers that are reached through a
  /// forwarder, returns the forwarder, which receives messages as soon as it has room for them. Throws InvalidArgument
  /// unless this rank is the sender.
  virtual std::vector<Holder> holders(Channel& channel) = 0;
  /// Returns the bytes in this rank's blocks that are in use, in all groups: allocated and not destroyed, or published
  /// and not yet released by all receivers.
  virtual std::uint64_t memory_in_use() = 0;
  /// Releases to the system the memory of this rank's unused blocks and of received messages that are no longer leased.
  /// Returns the number of bytes released. Without this call, an engine caches most of that memory until it is
  /// destroyed.
  virtual std::uint64_t trim() = 0;
};

}  // namespace levada
