// How bytes cross between ranks: the contract that every engine keeps. The cases of engine/conformance.h test it.
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

/// To how many other hosts a rank sends a message at most, unless it is configured.
inline constexpr int default_degree = 16;

/// Constant over an engine's lifetime.
struct EngineInfo {
  std::string name;  ///< "inproc", "shm", ...
  int rank = 0;      ///< of this member, in the engine's own numbering
  int size = 1;
  std::vector<int> host_of;  ///< each rank's host, numbered from 0
  /// With which choose_engine() chooses for the job: to how many other hosts a rank sends a message at most.
  int degree = default_degree;
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

/// A received message. The bytes do not change, and the sender's Block stays in use, until the last copy of `hold` is
/// destroyed. That may happen on any thread, and after the engine itself is gone. Never write to the bytes unless
/// make_private() has returned them.
struct Lease {
  ByteView bytes;
  std::shared_ptr<const void> hold;
};

/// Returns a block of at least that many bytes, of whatever engine, for a message to arrive in; nothing where there is
/// none at the moment. Called from any thread. It must neither block nor call the engine that calls it.
using Landing = std::function<std::optional<Block>(std::size_t bytes)>;

struct ChannelOptions {
  Landing landing{};      ///< empty: messages arrive in memory of the engine's choice
  std::uint64_t tag = 0;  ///< distinguishes channels that have the same sender and receivers
  /// On the sender: only close() closes the sending end, not the channel's destructor, and not leaving. On a receiver:
  /// where the sender has left without closing it, the channel has not ended, and calls wait for what else happens.
  bool must_be_closed = false;
};

/// What try_receive() found: a message, the end of the channel, or neither yet.
struct Received {
  std::optional<Lease> message{};
  /// No message follows: the sender has closed or left, or this rank has closed its receiving end.
  bool ended = false;
  /// The block in which the message arrived, at its beginning, if the channel's landing returned it: then it, and not
  /// message->hold, keeps the bytes, and it can be published on the engine that allocated it.
  Block landed{};
};

/// The ends of a channel that a rank may hold.
enum class End : std::uint8_t { sending, receiving };

/// A stream of messages from one rank to a fixed set of ranks. Every receiver gets every message, in the order sent.
/// Each engine has its own subclass. A member that holds a Channel is its sender, a receiver, or both. The destructor
/// closes the ends that this member holds.
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

/// What a rank reports about itself, so that others can explain a wait. 256 bytes.
struct Status {
  std::array<char, 24> operation{};  ///< "feed", "reading", ...; ends with a zero
  std::int64_t step = -1;
  std::int64_t since_ns = 0;      ///< steady clock of this host, when `operation` began
  std::int32_t waiting_for = -1;  ///< a rank of the group that it is posted in, or -1
  /// Set by the engine that returns it: for how long the rank has not answered when it was asked; 0 if it has.
  std::uint32_t unanswered_ms = 0;
  std::array<char, 208> detail{};  ///< free text; ends with a zero

  static Status make(std::string_view operation, std::int64_t step, int waiting_for = -1, std::string_view detail = {});
};
static_assert(sizeof(Status) == 256);

/// Why an engine's calls throw. An engine that is made of others composes its text anew, in its own numbers.
struct Cause {
  ErrorKind kind = ErrorKind::engine;  ///< engine, timeout: an abort; peer_lost; corrupt_message; invalid_argument
  int rank = -1;  ///< whose act, end or fault, in the numbering of the engine that throws; -1: none of its ranks
  std::int64_t step = -1;  ///< of the rank's last status, where it was lost and that is known
  std::string detail{};    ///< an abort's reason; how an end was seen; what was wrong

  /// One sentence.
  std::string text() const;
  /// Throws the exception of that kind; PeerLost for a rank that has given up.
  [[noreturn]] void raise() const;
};

/// What wait() waits for: any of these. All are levels, not edges: a condition that already holds ends the wait.
struct WaitFor {
  std::span<Channel* const> receive{};      ///< one of these has a message, or has ended
  std::span<Channel* const> publish{};      ///< try_publish() on one of these may succeed, or this rank has closed it
  std::size_t allocate = 0;                 ///< unless 0: try_allocate() of that many bytes may succeed
  const std::atomic<bool>* stop = nullptr;  ///< becomes true; its setter calls wake()
  /// Called on the waiting thread, without locks, before it sleeps and then at least every `poll_interval`. What it
  /// throws, wait() throws. Null, or an empty function: none.
  const std::function<void()>* poll = nullptr;

  static constexpr Duration poll_interval = std::chrono::milliseconds(100);
  /// For engines, before each sleep in wait(): calls `poll`, and returns for how long the thread may sleep at most.
  Duration poll_before_sleep(Deadline deadline) const;
};

/// What a block is for. Storage stays allocated for as long as its owner likes, so it gets at most half of an engine's
/// memory and blocks, and none of the last 8 MiB: the rest is left for messages.
enum class BlockUse : std::uint8_t { message, storage };

enum class Woken : std::uint8_t { ready, stopped, timeout };

/// One member's end of a group of ranks. Any thread may call; one thread at a time uses one end of a Channel. Only
/// wait() blocks.
///
/// A group ends for one cause(), whichever comes first, and from then on every call throws it. After abort(), that is
/// EngineError with the reason; PeerLost, which names the rank, if that has given up a wait. After a member's process
/// has ended without leaving the group, it is PeerLost, which names the rank; but messages that it had published before
/// can still be received. A member that left the group first is not lost, however its process ends later.
/// CorruptMessage: a member has sent a malformed message. InvalidArgument: members opened one with different windows.
/// Leases stay valid in any case. info(), shares_memory(), cause(), wake(), close(), abort(), memory_in_use() and
/// trim() never throw because the group has ended.
///
/// Destroying the last reference leaves the group: channels close, and the other members carry on.
class Engine {
 public:
  virtual ~Engine() = default;  ///< leaving may block until what this rank forwards has been received

  virtual const EngineInfo& info() const = 0;
  /// Returns whether a lease of what `rank` has sent shows the very bytes of that rank's block.
  virtual bool shares_memory(int rank) const = 0;
  /// Returns whether that holds for all ranks.
  bool shares_memory() const;
  /// Returns where `bytes` lie in this rank's memory, for view() on ranks that share it; nothing unless all of them lie
  /// where its blocks do.
  virtual std::optional<std::uint64_t> position_of(ByteView /*bytes*/) const { return std::nullopt; }
  /// Returns what lies at that position of `rank`'s memory, to be read. The bytes do not change while `rank` keeps the
  /// block that they are in and does not write to it: as long as it is in the hold of a lease that `rank` publishes, so
  /// until that message's receivers have ended theirs. Nothing where that memory is not shared or not as large.
  virtual std::optional<ByteView> view(int /*rank*/, std::uint64_t /*position*/, std::uint64_t /*bytes*/) const {
    return std::nullopt;
  }

  /// Returns whether `bytes`, of a lease or of a block in use, lie in an engine's memory whose owner gives no pages
  /// back to the system from now on: a device's driver that reads the pages directly also reads what their owner writes
  /// to them later, as long as this engine exists.
  virtual bool keep_pages(ByteView /*bytes*/) const { return false; }

  /// Returns an engine over some of this one's ranks, in the order given: ranks[i] becomes rank i. Collective over
  /// those ranks alone, but waits for nobody. Groups of the same ranks are distinguished by `name`, and by the order in
  /// which they are made, which must be the same on all members. The result stays usable after this engine is
  /// destroyed. Throws InvalidArgument for a rank out of range or named twice, and for ranks that this one is not
  /// among.
  virtual std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) = 0;

  /// Opens a channel. Its sender and all its receivers open it, and nobody else; the sender may be among the receivers.
  /// Members open the channels with the same sender, receivers and tag in the same order and with the same window, but
  /// not at the same time: messages wait for receivers that have not opened the channel yet. Where windows differ, the
  /// first message ends the group with InvalidArgument on all members. At most `window` messages are published and not
  /// yet received by all; where ranks forward them, that holds for each of these in turn. An engine that receives into
  /// memory of its choice receives into the block that `options.landing` returns, if it is given and returns one.
  /// Throws InvalidArgument for no receivers, a rank out of range or named twice, a channel that this rank is neither
  /// sender nor receiver of, and a window below one.
  virtual std::shared_ptr<Channel> open(int from, std::span<const int> to, int window, ChannelOptions options) = 0;
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window) { return open(from, to, window, {}); }
  std::shared_ptr<Channel> open(int from, std::initializer_list<int> to, int window) {
    return open(from, std::span(to.begin(), to.size()), window, {});
  }

  /// Returns a Block of at least `bytes`, or nothing while too much of the engine's memory is in use. Throws
  /// InvalidArgument for more bytes than the engine can ever allocate; the message says how many that is. Returns
  /// nothing for storage that would leave too little for messages, however much is in use by them.
  virtual std::optional<Block> try_allocate(std::size_t bytes, BlockUse use) = 0;
  std::optional<Block> try_allocate(std::size_t bytes) { return try_allocate(bytes, BlockUse::message); }

  /// Sends the first `bytes` of `block`, at least one, to all receivers. True: the block now belongs to the message.
  /// False: there is no room at the moment, and nothing has happened. A full window is one reason; an engine may have
  /// others, such as a queue that several channels share, and wait() knows them all. Throws InvalidArgument unless this
  /// rank is the sender and has not closed the channel, and for a block that another engine allocated.
  virtual bool try_publish(Channel& channel, Block& block, std::size_t bytes) = 0;
  /// Sends what somebody else keeps, without a copy: a message that this or another engine has received, or a block
  /// that is to be published on two engines. This engine keeps `lease.hold` until no receiver needs the bytes, and
  /// perhaps until its next call that allocates, publishes a lease or asks for memory in use. Throws Unsupported where
  /// the bytes lie in memory that the engine cannot send from, or in a block that it is still sending: shm sends its
  /// own blocks alone, each on one channel at a time.
  virtual bool try_publish(Channel& channel, const Lease& lease) = 0;

  /// Returns the next message, or that the channel has ended, or neither. A message or an end that has arrived is
  /// returned even after a member was lost, but not after abort(). Throws InvalidArgument unless this rank is a
  /// receiver.
  virtual Received try_receive(Channel& channel) = 0;
  /// Returns whether the sender of a channel that must be closed has left without closing it, and this rank has
  /// received every message that it had sent. Throws InvalidArgument unless this rank is a receiver.
  virtual bool is_abandoned(Channel& channel) = 0;

  /// Lets the caller write to the bytes of `lease`, which it has just received from `channel` and has not copied.
  /// Returns those bytes; they may have moved, and `lease` then shows the new place. Writes are visible through this
  /// lease alone, not through other leases or on other ranks, and are lost when it ends. An engine that has nothing
  /// cheaper than a copy returns an empty span and changes nothing, as this default does; the caller then copies.
  virtual std::span<std::byte> make_private(Channel& channel, Lease& lease);

  /// Blocks until one of the conditions holds, or until the deadline. A deadline that has passed makes it a check,
  /// which neither sleeps nor polls. Throws what the calls that it waits for would throw: InvalidArgument for a channel
  /// that this rank does not receive from or send on, and for more bytes than can ever be allocated.
  virtual Woken wait(const WaitFor& conditions, Deadline deadline) = 0;
  /// Makes this process's waits on this engine check their conditions again.
  virtual void wake() = 0;
  /// Sets a function that is called whenever what wait() waits for may have changed, also while no thread waits. So a
  /// thread can wait for two engines: inside wait() of the one, which the hook of the other wakes. Called from any
  /// thread, inside any call of the engine; it must neither block nor call the engine. Empty: none. All groups of a
  /// rank have one hook. Throws Unsupported where the engine sees messages only while a thread waits.
  virtual void on_change(std::function<void()> hook) = 0;

  /// Ends the group, and all subgroups made from it, for all members. Their calls throw from now on, with the first 600
  /// bytes of `reason`: EngineError, or InvalidArgument if that is `kind`. `timeout`: this rank gives up a wait, and
  /// they throw PeerLost with its rank; `reason` continues "rank 3 left ".
  virtual void abort(std::string_view reason, ErrorKind kind) noexcept = 0;
  void abort(std::string_view reason) noexcept { abort(reason, ErrorKind::engine); }
  /// Notifies all ranks that one has ended without leaving, as something else has seen: for them it is lost. Nothing
  /// happens on an engine that sees that by itself, such as between processes of one host.
  virtual void report_lost(int /*rank*/, std::string_view /*how*/) noexcept {}
  /// Returns why calls throw; nothing while they do not.
  virtual std::optional<Cause> cause() = 0;
  /// Closes an end. Sending: no more messages follow. Receiving: messages that this rank has not received, and later
  /// ones, count as received; for this rank the channel has ended. Nothing happens to an end that it does not hold.
  virtual void close(Channel& channel, End end) noexcept = 0;

  /// Posts this rank's status in this group. A rank has one status in each group that it is in.
  virtual void post(const Status& status) = 0;
  /// Returns what `rank` has posted last in this group, as far as this rank knows; a blank Status if nothing.
  virtual Status status(int rank) = 0;
  /// Asks the other ranks for their statuses, on an engine on which they have to be asked, and returns at once. For a
  /// rank whose wait begins to be long: it can then say what the others do. Calls in quick succession ask once.
  virtual void ask_statuses() {}
  /// A receiver that occupies the channel's window or its sender's memory.
  struct Holder {
    int rank = 0;
    int not_received = 0;  ///< messages
    int leased = 0;        ///< messages received whose leases have not ended
  };
  /// Returns which receivers hold messages of this sender; for explaining a wait. Of receivers for whom another
  /// forwards, that is the forwarder, which receives at once what there is room for. Throws InvalidArgument unless this
  /// rank is the sender.
  virtual std::vector<Holder> holders(Channel& channel) = 0;
  /// Returns the bytes of this rank's blocks in use, in all groups: allocated and not destroyed, or published and not
  /// released by all receivers.
  virtual std::uint64_t memory_in_use() = 0;
  /// Releases to the system the memory of this rank's blocks that are not in use, and of messages that it has received
  /// and does not keep. Returns how many bytes that were. The engine itself does so only when it is destroyed.
  virtual std::uint64_t trim() = 0;
};

}  // namespace levada
