// What every operation needs on top of an Engine's verbs, written once: calls that block, and a small all-gather.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/engine/engine.h"

namespace levada {

// `poll`, wherever a call here waits: as WaitFor::poll.

/// One wait for other ranks, in as many calls as it takes. Writes a line once it has lasted for `first`, and again each
/// time it has lasted twice as long as at the line before.
class Reminder {
 public:
  static constexpr Duration after = std::chrono::seconds(30);

  /// Writes to standard error.
  explicit Reminder(Duration first = after);
  /// Writes by a call of `write`, and nothing if that is empty.
  Reminder(Duration first, std::function<void(const std::string&)> write);

  /// Engine::wait(). `explain` returns what a Timeout would say now.
  Woken wait(Engine& engine, const WaitFor& conditions, Deadline deadline, const std::function<std::string()>& explain);

  /// For waits that are no Engine's: returns when to call write_if_due() next, or `deadline` if that is earlier.
  Deadline next(Deadline deadline) const { return due_.at() < deadline.at() ? due_ : deadline; }
  void write_if_due(const std::function<std::string()>& explain);

 private:
  Duration interval_;
  Deadline due_;
  std::function<void(const std::string&)> write_;
};

/// Calls try_allocate() until it returns a block. `what` names the operation in the Timeout, which says how much of
/// what this rank has sent on `sent` each rank holds.
Block allocate(Engine& engine, std::size_t bytes, Deadline deadline, std::string_view what,
               std::span<Channel* const> sent = {}, const std::function<void()>* poll = nullptr);

/// try_publish() until the message is gone. The Timeout says which receivers keep the window full, and what they do.
void publish(Engine& engine, Channel& channel, Block block, std::size_t bytes, Deadline deadline, std::string_view what,
             const std::function<void()>* poll = nullptr);

/// try_receive() until there is a message; empty when the channel has ended. The Timeout is explain_wait()'s sentence.
std::optional<Lease> receive(Engine& engine, Channel& channel, Deadline deadline, std::string_view what,
                             const std::function<void()>* poll = nullptr);

/// Throws what has ended the group, if anything has. For a rank that finds that another one has left too early: what
/// ended the group explains it better.
void check_group(Engine& engine);

/// The Status::operation of a rank that an exception ends. Its text is the detail, and the step is the one at which the
/// rank left a feed because of it, if it did.
inline constexpr std::string_view raised_operation = "raised";

/// The Status::operation of a rank that waits because others have not received what it has sent.
inline constexpr std::string_view full_operation = "waiting for room";
/// The same of what it forwards.
inline constexpr std::string_view forwarding_operation = "forwarding";

/// Returns the text of the exception that ends `rank`, if the rank has posted it.
std::optional<std::string> raised_by(Engine& engine, int rank);

/// How long a rank that another one has left listens for that one's reason: it may be ending with an exception of which
/// it did not know yet when it left.
inline constexpr Duration until_a_reason_comes = std::chrono::milliseconds(1500);

/// Waits that long at most for `rank`, which has left, to post an exception. Throws what ends the group meanwhile.
void await_reason(Engine& engine, int rank, const std::function<void()>* poll = nullptr);

/// Throws why `rank` has left before `what`: what has ended the group, if anything has; else PeerLost, which names the
/// rank and the exception that it has posted, if it has.
[[noreturn]] void throw_left(Engine& engine, int rank, std::string_view what);

/// Everybody's bytes, by rank. Collective; small things only: start-up, schemas, failures. The Timeout names the ranks
/// whose bytes are missing. `what` names the operation, alike on all ranks: where another one is in a call with another
/// `what`, or in a GatherScatter's, the group ends with InvalidArgument.
std::vector<Bytes> agree(Engine& engine, ByteView mine, Deadline deadline, std::string_view what,
                         const std::function<void()>* poll = nullptr);

/// Calls in which each rank gives bytes and gets back what rank 0 makes of everybody's, over channels that stay open
/// from call to call. Made and called collectively, in one order with other collective calls; one thread at a time.
class GatherScatter {
 public:
  /// `what` names the operation, alike on all ranks.
  GatherScatter(std::shared_ptr<Engine> engine, std::string what);

  /// Called on rank 0, with what each rank gave, which is valid during the call; returns a part for each rank. Ranks
  /// may share one.
  using Answer = std::function<std::vector<std::shared_ptr<const Bytes>>(std::span<const ByteView>)>;
  /// Returns this rank's part. `timeout`: of one wait, which begins anew whenever a rank arrives and when rank 0 begins
  /// to make the answers. Throws as agree() does, and on rank 0 alone what `answer` throws. Where a
  /// rank has left before the call, all throw PeerLost, then and in later calls.
  Lease call(ByteView mine, const Answer& answer, Duration timeout, const std::function<void()>* poll = nullptr);

 private:
  std::shared_ptr<Engine> engine_;
  std::string what_;
  std::vector<std::shared_ptr<Channel>> to_root_, from_root_;  ///< on rank 0, of all others; else its own
};

/// "rank 3 waited 30.0 s in feed for step 17 from rank 0; rank 0: reading step 17, corpus.jsonl, for 29.8 s": from the
/// status board, following waiting_for from rank to rank.
std::string explain_wait(Engine& engine, std::string_view what, int waiting_for, Duration waited);

/// "rank 0 waited 30.0 s in feed for step 17 for 12.5 MiB of memory: rank 2 has 1 not received, 3 still leased": which
/// ranks hold what was sent on `sent`.
std::string explain_full_memory(Engine& engine, std::size_t bytes, std::string_view what, Duration waited,
                                std::span<Channel* const> sent);

}  // namespace levada
