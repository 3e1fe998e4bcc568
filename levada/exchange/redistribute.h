// Samples move from the ranks that have them to the ranks that need them, over any engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "levada/engine/engine.h"
#include "levada/exchange/planner.h"
#include "levada/exchange/store.h"

namespace levada {

/// Of a message: 1 MiB where ranks share memory, so that it stays in the caches between them; 16 MiB where each message
/// costs a round of the network.
std::uint64_t suitable_chunk_bytes(const Engine& engine);

struct ExchangeOptions {
  /// Of one wait, for the other ranks to begin or for the next message.
  Duration timeout = std::chrono::minutes(30);
  /// A message's most bytes; the same on all ranks. None: what suits the engine. For redistribute() alone: a plan has
  /// its own.
  std::optional<std::uint64_t> chunk_bytes = {};
  /// At most so many bytes of a rank's messages are on the way at a time, or two messages.
  std::uint64_t in_flight_bytes = std::uint64_t{64} << 20;
  /// As WaitFor::poll, in all waits of the call. What it throws, the call throws.
  std::function<void()> poll = {};
};

/// What one exchange did, as this rank saw it.
struct ExchangeResult {
  ExchangePlan plan;
  std::uint64_t sent_bytes = 0;      ///< by this rank, each message counted once
  std::uint64_t sent_messages = 0;   ///< by this rank
  std::uint64_t received_bytes = 0;  ///< by this rank
  std::uint64_t agreed_bytes = 0;    ///< that this rank told the others before anything moved
  Duration agree_time{}, plan_time{}, move_time{};
};

/// Brings it about that the ranks asked for have the samples and keys asked for. Collective over the engine's members
/// (of a job in which only some are involved: over a subgroup of those); ranks are the engine's. There is nothing to
/// set up. Every rank says what its store has of the samples asked for, all plan the same out of that
/// (plan_exchange()), then bytes move: into memory of the receivers' own, message by message, sending and receiving at
/// the same time. Safe to repeat: what is there already does not move again.
///
/// Throws the same InvalidArgument on all ranks, naming sample, key and ranks, before anything has moved: what
/// plan_exchange() refuses; ranks that ask for different things, make different calls or name different stores, or say
/// different things of one sample; a store whose bound does not allow what is to come. When a rank dies in the middle
/// the others throw PeerLost. Whatever else one rank alone throws ends the group (Engine::abort()), so that the others
/// throw EngineError with its reason: Timeout, which says who waited for whom, std::bad_alloc, or a sample that another
/// thread has taken away meanwhile. Each key of each sample is then in a store as a whole or not at all, and a
/// repetition in a new group moves the rest.
ExchangeResult redistribute(const std::shared_ptr<Engine>& engine, SampleStore& store, const ExchangeRequest& request,
                            const ExchangeOptions& options = {});

/// Carries out a plan made elsewhere, by a controller that is told what ranks hold. Collective, and otherwise, as
/// redistribute(). Throws InvalidArgument on all ranks, before anything has moved, when a rank has another plan, no
/// longer holds what it is to send, or holds it in another form.
ExchangeResult carry_out(const std::shared_ptr<Engine>& engine, SampleStore& store, const ExchangePlan& plan,
                         const ExchangeOptions& options = {});

/// What all stores of the engine's members hold, the same on every rank. Collective; throws as redistribute() does.
Ownership gather_ownership(const std::shared_ptr<Engine>& engine, const SampleStore& store,
                           const ExchangeOptions& options = {});

}  // namespace levada
