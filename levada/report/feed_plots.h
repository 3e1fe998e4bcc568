// The plots of a feed's page, as pieces of HTML with SVG in it.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "levada/report/feed_html.h"
#include "levada/report/history.h"

namespace levada::report {

/// In how many parts a plot shows the time: few enough that some steps fall in each, or enough to see each step.
std::size_t parts_for(const std::vector<Trace>& traces);

/// "read": under which name the page's style knows a kind.
std::string_view kind_class(TraceKind kind);

/// The kinds of time as they are stacked, from the ground up; the caller's own step is the last.
inline constexpr std::array stacked_kinds = {TraceKind::read,  TraceKind::pack,     TraceKind::memory, TraceKind::room,
                                             TraceKind::grant, TraceKind::handover, TraceKind::step};

/// A line of time a rank, coloured by what its thread did; where there are many, those that waited most. `label` says
/// what the sum at the end of a line is. Empty without rows of this thread.
std::string timeline_plot(const FeedReport& report, const Timeline& timeline, TraceThread thread);

/// The same data for the script that shows it under the pointer: a JSON object.
std::string plot_data(const FeedReport& report, const Timeline& timeline,
                      const std::vector<std::vector<std::uint64_t>>& memory);

/// Memory over time, a curve a rank. Empty where no rank has samples.
std::string memory_plot(const Timeline& timeline, const std::vector<std::vector<std::uint64_t>>& memory);

/// The busiest rank's work over the steps, balanced and in the samples' order, by the least that it can be. Empty
/// without steps.
std::string balance_plot(const BalanceReport& balance);

/// Who was sent how much by whom: a row a reader, a column a rank or, where there are many, several.
std::string edge_matrix(const FeedReport& report, const std::vector<FeedEdge>& edges);

}  // namespace levada::report
