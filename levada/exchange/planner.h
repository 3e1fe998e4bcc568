// SampleDirectory x destinations -> ExchangePlan. Pure: no I/O, no threads; the same on all ranks without
// communication.
#pragma once

#include <cstdint>
#include <span>

#include "levada/exchange/destinations.h"
#include "levada/exchange/exchange_plan.h"

namespace levada {

/// Returns the moves that deliver all requested samples and keys to the ranks of each destination. A rank that holds an
/// item, or the whole of which it wants a part, receives nothing. Ranks that lack an item receive it from their own
/// host if a rank on that host holds the whole: one holder on each such host sends a single copy to all of them. The
/// holder on the host with the most of these ranks also sends that copy to the hosts without a holder. If no host has
/// both, one holder sends to all. Senders are chosen among the holders of a host so that the busiest one sends as
/// little as possible (assignment.h). Only sent bytes count as load, because received bytes are the same in every plan.
/// The plan does not depend on the order of requests and holdings. Linear in samples x keys, except sorting within
/// multicasts: a million samples from 1,024 to 1,024 ranks take less than a second.
///
/// `host_of`: each rank's host; if empty, all ranks are on one host. Throws InvalidArgument, naming the lowest sample,
/// its key and ranks regardless of the order: for a sample that no rank holds; a key of it that no rank holds (unless
/// allow_absent); a part whose whole no rank holds; a rank that wants different parts of one sample; a rank that does
/// not exist; and 2^64 bytes or more.
ExchangePlan plan_exchange(const SampleDirectory& directory, const ExchangeRequest& request,
                           std::span<const int> host_of = {});

/// Same as above, for a directory whose sample numbers are known and ascend with the ids. `requested` has the numbers
/// of the ids of all destinations that have ranks, one after another. A sample may count as held even if no rank holds
/// a key of it.
ExchangePlan plan_exchange(const SampleDirectory& directory, const ExchangeRequest& request,
                           std::span<const std::uint32_t> requested, std::span<const int> host_of);

}  // namespace levada
