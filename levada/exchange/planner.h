// SampleDirectory x destinations -> ExchangePlan. Pure: no I/O, nothing running; the same everywhere without talking.
#pragma once

#include <cstdint>
#include <span>

#include "levada/exchange/destinations.h"
#include "levada/exchange/exchange_plan.h"

namespace levada {

/// What has to move so that the ranks of each destination have all samples and keys asked for. A rank that has an item,
/// or the whole where a part is wanted, gets nothing. Ranks that lack an item get it from their own host, if a rank
/// there holds the whole: one holder on each such host sends them one copy together. The one on the host with the most
/// of these ranks also sends that copy to the hosts without a holder. If no host has both, one holder sends to all.
/// Among the holders of a host the choice is such that the rank that sends most sends as little as can be
/// (assignment.h). Only bytes sent count as load, for those received are the same in every plan. A plan is invariant
/// under the order of everything asked and known. Linear in samples x keys, except sorting within multicasts: a million
/// samples from 1,024 to 1,024 ranks take less than a second.
///
/// `host_of`: each rank's host; none: all are on one. Throws InvalidArgument, naming the lowest sample, its key and
/// ranks, whatever the order: a sample that nobody holds; a key that nobody has of it (unless allow_absent); a part of
/// which nobody has the whole; a rank that wants different parts of one sample. Also for no such rank, and for 2^64
/// bytes or more.
ExchangePlan plan_exchange(const SampleDirectory& directory, const ExchangeRequest& request,
                           std::span<const int> host_of = {});

/// In place of the number of a sample that nobody holds.
inline constexpr std::uint32_t no_sample = UINT32_MAX;

/// The same for a directory whose samples' numbers are known and ascend as ids do: `requested` has those of the ids of
/// all destinations that have ranks, one after the other. A sample may be held though nobody holds a key of it.
ExchangePlan plan_exchange(const SampleDirectory& directory, const ExchangeRequest& request,
                           std::span<const std::uint32_t> requested, std::span<const int> host_of);

}  // namespace levada
