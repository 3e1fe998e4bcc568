#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "levada/report/history.h"
#include "levada/report/numbers.h"
#include "levada/report/page.h"

namespace levada::report {
namespace {

struct Waits {
  std::array<double, trace_kinds> nanoseconds{};               ///< by kind
  std::array<std::map<int, double>, trace_kinds> by_others{};  ///< for each kind, by the rank that was waited for
  double own = 0, all = 0;

  explicit Waits(const std::vector<Trace>& traces) {
    for (const auto& trace : traces) {
      for (const auto& span : innermost(trace, TraceThread::step)) add(span);
    }
  }
  void add(const TraceSpan& span) {
    const auto time = static_cast<double>(span.duration_ns);
    if (span.kind == TraceKind::step) {
      own += time;
      return;
    }
    const auto kind = static_cast<std::size_t>(span.kind);
    all += time;
    nanoseconds[kind] += time;
    by_others[kind][span.other] += time;
  }
  std::size_t worst() const {
    return static_cast<std::size_t>(std::ranges::max_element(nanoseconds) - nanoseconds.begin());
  }
  /// Returns the rank that caused more than half of the waiting of a kind, or -1 if there is none.
  int cause(std::size_t kind) const {
    const auto one =
        std::ranges::find_if(by_others[kind], [&](const auto& other) { return other.second > nanoseconds[kind] / 2; });
    return one == by_others[kind].end() ? -1 : one->first;
  }
};

/// Returns the pipeline that the rank reads from, or null if it reads from none. For rank -1, returns the only
/// pipeline.
const PipelineReport* pipeline_of(const std::vector<PipelineReport>& pipelines, int rank) {
  if (rank < 0 && pipelines.size() == 1) return &pipelines.front();
  const auto found = std::ranges::find(pipelines, rank, &PipelineReport::rank);
  return found == pipelines.end() ? nullptr : &*found;
}

/// Describes the activity that ranks waited for, and a possible remedy.
std::string advice(TraceKind kind, int other) {
  const auto rank = other < 0 ? std::string("a reader") : fmt::format("rank {}", other);
  switch (kind) {
    case TraceKind::read: return rank + " was reading storage: faster storage or more readers would help.";
    case TraceKind::pack: return rank + " was packing messages: more readers would share that work.";
    case TraceKind::room:
      return (other < 0 ? std::string("some rank") : rank) +
             " had not received its batch: the slowest rank sets the pace, not the data.";
    case TraceKind::memory:
      return rank + " waited for memory: batches are held for long, or memory is small (levada doctor shows limits).";
    case TraceKind::grant: return "the lead rank committed the step: steps are too short to hide this.";
    case TraceKind::handover:
    case TraceKind::step: break;
  }
  return "a batch was delivered: steps are too short to hide this.";
}

}  // namespace

std::string find_bottleneck(const FeedReport& report, const std::vector<Trace>& traces,
                            const std::vector<PipelineReport>& pipelines) {
  constexpr double hardly = 0.02;
  const Waits waits(traces);
  if (waits.all <= 0 && waits.own <= 0) return "";
  const double share = report.waited_share();
  if (share < hardly || waits.all <= 0) {
    return fmt::format("Batches were ready when ranks requested them: ranks waited only {} of the time.",
                       format_share(share));
  }
  const auto worst = waits.worst();
  const int cause = waits.cause(worst);
  const auto kind = static_cast<TraceKind>(worst);
  const auto* pipeline = kind == TraceKind::read ? pipeline_of(pipelines, cause) : nullptr;
  return fmt::format("Ranks waited {} of the time, {} of that while {}", format_share(share),
                     format_share(waits.nanoseconds[worst] / waits.all),
                     pipeline == nullptr
                         ? advice(kind, cause)
                         : fmt::format("rank {} was waiting for its pipeline. {}", pipeline->rank, pipeline->finding));
}

}  // namespace levada::report
