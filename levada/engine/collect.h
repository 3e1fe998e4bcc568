// Helpers that every operation needs on top of Engine: blocking calls and a small all-gather.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/engine/engine.h"

namespace levada {

// Every `poll` below is a WaitFor::poll.

/// Returns a poll that calls `poll`, if there is one, and in a long wait requests the statuses of all ranks of `engine`
/// once a second, so that its Timeout can report them. Valid as long as both.
std::function<void()> asking_statuses(Engine& engine, const std::function<void()>* poll);

/// Reports a long wait for other ranks, which may span several calls. Writes a line once the wait has lasted for
/// `first`, and again each time its duration has doubled since the previous line.
class Reminder {
 public:
  static constexpr Duration after = std::chrono::seconds(30);

  /// Writes to standard error.
  explicit Reminder(Duration first = after);
  /// Writes with `write`; writes nothing if it is empty.
  Reminder(Duration first, std::function<void(const std::string&)> write);

  /// Calls Engine::wait(), and writes the result of `explain`, the text that a Timeout would have now, when a line is
  /// due.
  Woken wait(Engine& engine, const WaitFor& conditions, Deadline deadline, const std::function<std::string()>& explain);

  /// For waits that do not go through an Engine: returns when to call write_if_due() next, or `deadline` if earlier.
  Deadline next(Deadline deadline) const { return due_.at() < deadline.at() ? due_ : deadline; }
  void write_if_due(const std::function<std::string()>& explain);

 private:
  Duration interval_;
  Deadline due_;
  std::function<void(const std::string&)> write_;
};

/// Calls try_allocate() until it returns a block. `what` names the operation in the Timeout, which also states how many
/// messages sent on `sent` each rank holds.
Block allocate(Engine& engine, std::size_t bytes, Deadline deadline, std::string_view what,
               std::span<Channel* const> sent = {}, const std::function<void()>* poll = nullptr);

/// Calls try_publish() until it succeeds. The Timeout states which receivers keep the window full, and what they do.
void publish(Engine& engine, Channel& channel, Block block, std::size_t bytes, Deadline deadline, std::string_view what,
             const std::function<void()>* poll = nullptr);

/// Returns the first rank that keeps the window of `channel` full, or -1 if there is room.
int rank_without_room(Engine& engine, Channel& channel);

/// Calls try_receive() until there is a message. Returns nothing if the channel has ended. The text of the Timeout is
/// explain_wait()'s.
std::optional<Lease> receive(Engine& engine, Channel& channel, Deadline deadline, std::string_view what,
                             const std::function<void()>* poll = nullptr);

/// Throws the cause that has ended the group, if any. Called by a rank that finds that another has left too early,
/// because the cause is the better explanation.
void check_group(Engine& engine);

/// The Status::operation of a rank that is ending with an exception. `detail` is the exception's text; `step` is the
/// step at which the rank left a feed because of it, if it did.
inline constexpr std::string_view raised_operation = "raised";

/// The Status::operation of a rank that waits because others have not received the messages that it sent.
inline constexpr std::string_view full_operation = "waiting for room";
/// The same for messages that it forwards.
inline constexpr std::string_view forwarding_operation = "forwarding";

/// Returns the text of the exception with which `rank` is ending, if the rank has posted it.
std::optional<std::string> raised_by(Engine& engine, int rank);

/// The Status::operation of a rank that is in no other operation.
inline constexpr std::string_view computing_operation = "computing";

/// Posts the statuses of one operation. At the end, restores the status that this rank had posted before the first of
/// them; if it had posted none, posts that the rank is computing. Restores nothing if another operation has posted
/// since, for example the exception with which the rank ends.
class OperationStatus {
 public:
  /// `operation` must outlive this.
  OperationStatus(Engine& engine, std::string_view operation) : engine_(engine), operation_(operation) {}
  ~OperationStatus() { end(); }
  OperationStatus(const OperationStatus&) = delete;
  OperationStatus& operator=(const OperationStatus&) = delete;

  /// `step`: that of the earlier status if it is negative.
  void post(int waiting_for = -1, std::string_view detail = {}, std::int64_t step = -1);
  void end() noexcept;
  /// Leaves the status posted, because the operation has failed and other ranks may read who has held it up.
  void keep() noexcept { before_.reset(); }

 private:
  Engine& engine_;
  const std::string_view operation_;
  std::optional<Status> before_;
};

/// How long a rank that finds that another has left waits for its reason. The other rank may be ending with an
/// exception that had not been thrown yet when it left.
inline constexpr Duration reason_timeout = std::chrono::milliseconds(1500);

/// Waits for at most `reason_timeout` for `rank`, which has left, to post an exception. Throws the group's cause
/// if the group ends during the wait.
void await_reason(Engine& engine, int rank, const std::function<void()>* poll = nullptr);

/// Throws why `rank` has left before `what`: the cause that has ended the group, if any; otherwise PeerLost, which
/// names the rank and the exception that it posted, if any.
[[noreturn]] void throw_left(Engine& engine, int rank, std::string_view what);

/// All-gathers small byte strings: start-up data, schemas, failures. Returns them by rank. Collective. The Timeout
/// names the ranks whose bytes are missing. `what` names the operation and is the same on all ranks: if another rank is
/// in a call with another `what`, or in a GatherScatter's, the group ends with InvalidArgument.
std::vector<Bytes> agree(Engine& engine, ByteView mine, Deadline deadline, std::string_view what,
                         const std::function<void()>* poll = nullptr);

/// Collective calls to which each rank contributes bytes and from which it receives the part that rank 0 makes for it.
/// The channels stay open between calls. Created and called collectively, in the same order relative to other
/// collective calls on all ranks; used by one thread at a time.
class GatherScatter {
 public:
  /// `what` names the operation and is the same on all ranks.
  GatherScatter(std::shared_ptr<Engine> engine, std::string what);

  /// Called on rank 0 with each rank's bytes, which are valid only during the call. Returns one part per rank; ranks
  /// may share a part.
  using Answer = std::function<std::vector<std::shared_ptr<const Bytes>>(std::span<const ByteView>)>;
  /// Returns this rank's part. `timeout` applies to each single wait: it restarts whenever a rank arrives and when rank
  /// 0 begins to make the parts. Throws as agree() does; also propagates exceptions of `answer`, on rank 0 only. If a
  /// rank has left before the call, all throw PeerLost, in this and in later calls.
  Lease call(ByteView mine, const Answer& answer, Duration timeout, const std::function<void()>* poll = nullptr);

 private:
  std::shared_ptr<Engine> engine_;
  std::string what_;
  std::vector<std::shared_ptr<Channel>> to_root_, from_root_;  ///< on rank 0: for each other rank; on other ranks: only
                                                               ///< this rank's
};

/// Explains a wait by the posted statuses, following waiting_for from rank to rank: "rank 3 waited 30.0 s in feed for
/// step 17 from rank 0; rank 0: reading step 17, corpus.jsonl, for 29.8 s". `waiting_for` is -1 if it is not known.
std::string explain_wait(Engine& engine, std::string_view what, int waiting_for, Duration waited);

/// Explains which ranks hold messages sent on `sent`: "rank 0 waited 30.0 s in feed for step 17 for memory for a block
/// of 12.5 MiB; rank 2 holds messages: 1 not received, 3 still leased; end leases sooner, or give the engine more
/// memory".
std::string explain_full_memory(Engine& engine, std::size_t bytes, std::string_view what, Duration waited,
                                std::span<Channel* const> sent);

}  // namespace levada
