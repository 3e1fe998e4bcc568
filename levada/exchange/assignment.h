// Chooses which of several holders sends each item, so that the busiest rank sends as little as possible. This is
// makespan scheduling with restricted assignment, a case of unrelated machines. Private to this module's planner.
#pragma once

#include <cstdint>
#include <vector>

namespace levada {

/// An item that one of several ranks has to send.
struct SendChoice {
  std::uint64_t bytes = 0;
  std::uint32_t sources = 0;  ///< index into the source lists
  std::uint64_t order = 0;    ///< breaks ties, so that the result does not depend on the order of the choices
};

struct AssignmentLimits {
  std::size_t exact_choices = 14;           ///< maximum number of choices for an exact search
  std::size_t searched_choices = 64;        ///< maximum number for a search to within a tenth of the lower bound
  std::uint64_t exact_steps = 200'000;      ///< maximum steps of either search
  std::uint64_t search_steps = 20'000'000;  ///< maximum steps of the local search
};

/// Returns the sender of each choice. `source_lists` has ascending ranks and no list twice; lists that no choice refers
/// to may be empty. `loads` has the bytes that each rank sends regardless of the choices. Assigns the longest choice
/// first, each to the least loaded of its ranks (LPT, Graham 1969). If the busiest rank then exceeds the lower bound by
/// more than a hundredth, a local search moves choices away from it. If a gap remains and there are few choices, a
/// branch-and-bound search with a step limit follows. Deterministic, and independent of the order of the choices if
/// `order` distinguishes equal ones.
std::vector<int> assign_senders(const std::vector<SendChoice>& choices,
                                const std::vector<std::vector<int>>& source_lists, std::vector<std::uint64_t> loads,
                                const AssignmentLimits& limits = {});

}  // namespace levada
