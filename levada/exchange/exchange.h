// Moves samples between the stores of ranks: from those that have them to those that need them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "levada/base/one_caller.h"
#include "levada/engine/collect.h"
#include "levada/exchange/planner.h"
#include "levada/exchange/store.h"

namespace levada {

class SampleIndex;

struct ExchangeOptions {
  /// Of one wait, for the next rank to begin, for the plan or for the next message. Ranks may choose different ones:
  /// the first that passes ends the call on all.
  Duration timeout = std::chrono::minutes(30);
  /// The most bytes that are copied into a message; the same on all ranks. None: 1 MiB where ranks share memory, so
  /// that it stays in the caches between them; 16 MiB where each message costs a round of the network.
  std::optional<std::uint64_t> chunk_bytes = {};
  /// At most so many bytes of a rank's messages are on the way at a time, or two messages. Where ranks share memory,
  /// always three messages.
  std::uint64_t in_flight_bytes = std::uint64_t{64} << 20;
  /// As WaitFor::poll, in all waits of the call. What it throws, the call throws.
  std::function<void()> poll = {};
};

/// What one exchange did.
struct ExchangeResult {
  // Of all ranks, as ExchangePlan has them.
  std::uint64_t multicasts = 0;
  std::uint64_t moved_bytes = 0, lower_bound_bytes = 0, delivered_bytes = 0;
  // Of this rank.
  std::uint64_t sent_bytes = 0;  ///< each message counted once
  std::uint64_t sent_messages = 0;
  std::uint64_t received_bytes = 0;                 ///< that were for it
  std::uint64_t agreed_bytes = 0;                   ///< sent to rank 0 before anything moved
  Duration agree_time{}, plan_time{}, move_time{};  ///< to plan: on rank 0 alone
};

/// One rank's end of the exchanges of a group. Made by all ranks of an engine, of which some may have nothing to send
/// or to receive (of a job in which few are involved: over a subgroup of those); ranks are the engine's. Its channels
/// stay open from call to call. All calls are collective; another thread's call meanwhile throws InvalidArgument.
///
/// Calls throw the same InvalidArgument on all ranks, naming sample, key and ranks, before anything has moved: what
/// plan_exchange() refuses; ranks that ask for different things, make different calls or name different stores, say
/// different things of one sample, or hold different contents of it (redistribute()); a store whose bound does not
/// allow what is to come. When a rank dies in the middle the others throw PeerLost, and also when one has left before
/// the call, then and in every later call. Whatever else one rank alone throws ends the group (Engine::abort()). The
/// others throw PeerLost for a Timeout, which says who waited for whom, and EngineError for std::bad_alloc, or a sample
/// that another thread has changed meanwhile. Each key of each sample is then in a store as a whole or not at all, and
/// a repetition in a new group moves the rest.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Engine> engine);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Delivers the requested keys and samples to the requested ranks. Every rank says what its store has of them; rank 0
  /// plans (plan_exchange()) and sends each rank its part; then bytes move: into memory of the receivers' own, message
  /// by message, sending and receiving at the same time. Safe to repeat: what is there already does not move again. A
  /// rank whose store has what it had in the call before, for the same request, only says so, and where that holds for
  /// all ranks nothing is planned anew.
  ExchangeResult redistribute(SampleStore& store, const ExchangeRequest& request, const ExchangeOptions& options = {});

  /// Returns what all stores hold, the same on every rank.
  SampleDirectory all_gather(const SampleStore& store, const ExchangeOptions& options = {});

  /// Counts a call that the caller has refused itself, which other ranks make: their next calls and this rank's are
  /// then refused on all, and not taken for the same. Any thread.
  void skip() { ++calls_; }

 private:
  /// The index of the request, which is kept for the next one.
  const SampleIndex& index_of(const ExchangeRequest& request);
  struct Round;
  /// Rank 0's answer to each rank. Moves what the next round needs out of the one before, `last`, to this one, `now`.
  std::vector<std::shared_ptr<const Bytes>> plan_for_all(std::span<const ByteView> gathered,
                                                         const ExchangeRequest& request, Round& last, Round& now);

  std::shared_ptr<Engine> engine_;
  GatherScatter preflight_;
  /// By rank, from it to all others, where they share memory: a message to all costs as much as one to some.
  std::vector<std::shared_ptr<Channel>> to_all_;
  std::unique_ptr<const SampleIndex> index_;
  std::optional<SampleDirectory> ids_;  ///< of the index, on rank 0, unless they are many
  std::unique_ptr<Round> last_;         ///< the call before, unless it failed
  std::atomic<std::uint64_t> calls_ = 0;
  OneCaller callers_;
};

}  // namespace levada
