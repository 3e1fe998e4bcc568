// Moves samples between the stores of ranks, from the ranks that hold them to the ranks that need them.
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
  /// Limit for each wait: for the next rank to enter the call, for the plan, or for the next message. Ranks may choose
  /// different limits; the first one to expire ends the call on all ranks.
  Duration timeout = std::chrono::minutes(30);
  /// Maximum bytes copied into one message; the same on all ranks. Default: 1 MiB if ranks share memory, so that a
  /// message stays in the caches they share; 16 MiB if each message costs a network round trip.
  std::optional<std::uint64_t> chunk_bytes = {};
  /// Maximum bytes of a rank's messages in flight, though two messages are always allowed. If ranks share memory, the
  /// limit is always three messages.
  std::uint64_t in_flight_bytes = std::uint64_t{64} << 20;
  /// Runs during every wait of the call, as WaitFor::poll does. The call rethrows its exceptions.
  std::function<void()> poll = {};
};

/// Statistics of one exchange.
struct ExchangeResult {
  // All ranks together, as in ExchangePlan.
  std::uint64_t multicasts = 0;
  std::uint64_t moved_bytes = 0, lower_bound_bytes = 0, delivered_bytes = 0;
  // This rank.
  std::uint64_t sent_bytes = 0;  ///< each message counted once
  std::uint64_t sent_messages = 0;
  std::uint64_t received_bytes = 0;                 ///< message bytes that were addressed to this rank
  std::uint64_t agreed_bytes = 0;                   ///< bytes sent to rank 0 before any sample moved
  Duration agree_time{}, plan_time{}, move_time{};  ///< plan_time: only on rank 0
};

/// One rank's endpoint for the exchanges of a group. All ranks of an engine construct it; some of them may have nothing
/// to send or receive. (If only a few ranks of a job take part, use a subgroup.) Rank numbers are the engine's.
/// Channels stay open between calls. All calls are collective; a concurrent call from another thread throws
/// InvalidArgument.
///
/// The following throw the same InvalidArgument on all ranks, naming sample, key and ranks, before anything has moved:
/// requests that plan_exchange() rejects; ranks that pass different requests, make different calls or name different
/// stores; ranks whose stores disagree about a sample or hold different contents of it (redistribute()); and a store
/// whose max_bytes is too small for the data that it would receive. If a rank dies during a call, the others throw
/// PeerLost. If a rank has left before a call, that call and every later one throw PeerLost. Any other exception of one
/// rank ends the group (Engine::abort()). The others then throw PeerLost for a Timeout, naming the waiting rank and the
/// rank that it waited for, and EngineError for std::bad_alloc or a sample that another thread changed during the call.
/// Each key of each sample is then in a store completely or not at all, and repeating the call in a new group moves the
/// rest.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Engine> engine);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Delivers the requested keys of the requested samples to the requested ranks. Every rank reports which of them its
  /// store has; rank 0 plans (plan_exchange()) and sends each rank its part of the plan; then the bytes move, message
  /// by message, into memory of the receiving stores, while each rank sends and receives concurrently. Repeating a call
  /// is safe: samples that have arrived do not move again. For the same request, a rank whose holdings have not changed
  /// since the previous call reports only that; if no rank's have changed, rank 0 does not plan again.
  ExchangeResult redistribute(SampleStore& store, const ExchangeRequest& request, const ExchangeOptions& options = {});

  /// Returns a directory of all ranks' stores, the same on every rank.
  SampleDirectory all_gather(const SampleStore& store, const ExchangeOptions& options = {});

  /// Counts a call that this rank's caller has rejected while other ranks make it. The next calls of all ranks then
  /// fail instead of being matched with the wrong ones. Any thread may call.
  void skip() { ++calls_; }

 private:
  /// Returns the index of the request, which is cached for the next call.
  const SampleIndex& index_of(const ExchangeRequest& request);
  struct Round;
  /// Returns rank 0's answer to each rank. Moves the state that the next round needs from the previous round, `last`,
  /// to this one, `now`.
  std::vector<std::shared_ptr<const Bytes>> plan_for_all(std::span<const ByteView> gathered,
                                                         const ExchangeRequest& request, Round& last, Round& now);

  std::shared_ptr<Engine> engine_;
  GatherScatter preflight_;
  /// A channel from each rank to all others, by sender; empty unless ranks share memory, which makes a message to all
  /// as cheap as one to some.
  std::vector<std::shared_ptr<Channel>> to_all_;
  std::unique_ptr<const SampleIndex> index_;
  std::optional<SampleDirectory> ids_;  ///< the index's ids, on rank 0, unless there are many
  std::unique_ptr<Round> last_;         ///< the previous call, unless it failed
  std::atomic<std::uint64_t> calls_ = 0;
  OneCaller callers_;
};

}  // namespace levada
