// Which of several holders sends what, so that the busiest rank sends as little as possible: scheduling of jobs on
// unrelated machines where each job may run on some machines alone. For this module's planner.
#pragma once

#include <cstdint>
#include <vector>

namespace levada {

/// One thing to be sent by one of several ranks.
struct SendChoice {
  std::uint64_t bytes = 0;
  std::uint32_t sources = 0;  ///< which list of ranks
  std::uint64_t order = 0;    ///< decides between equal ones, so that the order given does not matter
};

struct AssignmentLimits {
  std::size_t exact_choices = 14;           ///< up to so many, the best assignment is searched for
  std::size_t searched_choices = 64;        ///< up to so many, one that is known to be within a tenth of the best
  std::uint64_t exact_steps = 200'000;      ///< of either search, at most
  std::uint64_t search_steps = 20'000'000;  ///< of local search
};

/// The sender of each choice. `source_lists`: ascending ranks, no list twice; those that no choice has may be empty;
/// `loads`: bytes that each rank sends anyway. The longest first, each to the least loaded of its ranks (LPT, Graham
/// 1969); then, as long as the busiest rank is above what is known to be needed, moves that relieve it; for few choices
/// a bounded branch and bound. Deterministic, and invariant under the order of choices where `order` tells equal ones
/// apart.
std::vector<int> assign_senders(const std::vector<SendChoice>& choices,
                                const std::vector<std::vector<int>>& source_lists, std::vector<std::uint64_t> loads,
                                const AssignmentLimits& limits = {});

}  // namespace levada
