#include "levada/report/trace_json.h"

#include <fmt/format.h>

#include <iterator>
#include <limits>
#include <map>

#include "levada/base/json.h"
#include "levada/report/history.h"

namespace levada::report {
namespace {

using AnyJson = nlohmann::json;

std::string quoted(const std::string& text) {
  return json_text(AnyJson(text));
}

// Viewers treat the thread with its process's number as the main thread, and do not show number 0 properly. Process
// numbers therefore leave room for the numbers of their threads.
constexpr int numbers_per_rank = 10;
int process_of(std::size_t rank) {
  return static_cast<int>(rank + 1) * numbers_per_rank;
}
int thread_of(std::size_t rank, TraceThread thread) {
  return process_of(rank) + static_cast<int>(thread);
}

std::string name_of(const TraceSpan& span) {
  if (span.thread == TraceThread::step && span.kind != TraceKind::step) {
    return fmt::format("waiting: {}", describe(span.kind));
  }
  return std::string(describe(span.kind));
}

/// A process of a pipeline. Its tracks are numbered consecutively: first the track of the process, then those of its
/// stages.
struct PipelineTracks {
  const PipelineReport& pipeline;
  const ProcessReport& process;
  int number = 0;

  int track_of(std::int32_t stage) const { return number + 1 + stage; }
  std::string name_of_process(std::int32_t other) const {
    const auto at = static_cast<std::size_t>(other);
    return other >= 0 && at < pipeline.processes.size() ? pipeline.processes[at].name : "another process";
  }
};

std::string name_of(const PipelineTracks& tracks, const StageSpan& span) {
  switch (span.work) {
    case StageWork::item: return tracks.process.stages[static_cast<std::size_t>(span.stage)];
    case StageWork::input:
      return span.stage >= 0 ? "waiting for input" : "waiting for items of " + tracks.name_of_process(span.other);
    case StageWork::room: return "waiting: no room for items in " + tracks.name_of_process(span.other);
    case StageWork::memory: return "waiting: memory is full";
    case StageWork::pack: return "packing";
    case StageWork::unpack: return "unpacking";
    case StageWork::idle: break;
  }
  return "nothing to do";
}

/// Writes the events one by one, because there may be a million.
class Events {
 public:
  explicit Events(std::int64_t zero_ns) : zero_ns_(zero_ns) {}

  void name_rank(std::size_t rank, const std::string& name, bool reads) {
    const int process = process_of(rank);
    name_process(process, name, static_cast<int>(rank));
    name_thread(process, thread_of(rank, TraceThread::step), "step");
    if (reads) name_thread(process, thread_of(rank, TraceThread::reader), "reader");
  }
  void add_span(std::size_t rank, const TraceSpan& span) {
    const auto other = span.other < 0 ? std::string() : fmt::format(R"(,"rank":{})", span.other);
    add(R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"step":{}{}}}}})",
        name_of(span), span.thread == TraceThread::step ? "step" : "reader", process_of(rank),
        thread_of(rank, span.thread), time(span.begin_ns), microseconds(span.duration_ns), span.step, other);
  }
  void add_sample(std::size_t rank, const TraceSample& sample) {
    add(R"({{"ph":"C","name":"memory in use","pid":{},"tid":{},"ts":{},"args":{{"bytes":{}}}}})", process_of(rank),
        process_of(rank), time(sample.time_ns), sample.bytes);
  }
  void add_arrow(std::size_t from, std::int64_t from_ns, std::size_t to, std::int64_t to_ns) {
    ++arrows_;
    add(R"({{"ph":"s","name":"batch","cat":"batch","id":{},"pid":{},"tid":{},"ts":{}}})", arrows_, process_of(from),
        thread_of(from, TraceThread::reader), time(from_ns));
    add(R"({{"ph":"f","bp":"e","name":"batch","cat":"batch","id":{},"pid":{},"tid":{},"ts":{}}})", arrows_,
        process_of(to), thread_of(to, TraceThread::step), time(to_ns));
  }
  void name_tracks(const PipelineTracks& tracks) {
    const auto& process = tracks.process;
    const auto name = tracks.pipeline.rank < 0
                          ? process.name
                          : fmt::format("rank {} pipeline: {}", tracks.pipeline.rank, process.name);
    name_process(tracks.number, name, tracks.number);
    name_track(tracks, -1, "waits and messages");
    for (std::size_t stage = 0; stage < process.stages.size(); ++stage) {
      if (!process.stages[stage].empty()) name_track(tracks, static_cast<std::int32_t>(stage), process.stages[stage]);
    }
  }
  void add_span(const PipelineTracks& tracks, const StageSpan& span) {
    const auto args = span.work != StageWork::item
                          ? std::string()
                          : fmt::format(R"("items":{},"waiting_us":{})", span.items, microseconds(span.waited_ns));
    add(R"({{"ph":"X","name":{},"cat":"pipeline","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
        quoted(name_of(tracks, span)), tracks.number, tracks.track_of(span.stage), time(span.begin_ns),
        microseconds(span.duration_ns), args);
  }
  void add_rate(const PipelineTracks& tracks, std::int64_t time_ns, double items_a_second) {
    add(R"({{"ph":"C","name":"items a second","pid":{0},"tid":{0},"ts":{1},"args":{{"items":{2:.1f}}}}})",
        tracks.number, time(time_ns), items_a_second);
  }
  std::string take() && { return std::move(text_); }

 private:
  void name_track(const PipelineTracks& tracks, std::int32_t stage, const std::string& name) {
    const int track = tracks.track_of(stage);
    name_thread(tracks.number, track, name);
    add(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", tracks.number, track,
        stage + 1);
  }
  void name_process(int process, const std::string& name, int order) {
    add(R"({{"ph":"M","name":"process_name","pid":{0},"tid":{0},"args":{{"name":{1}}}}})", process, quoted(name));
    add(R"({{"ph":"M","name":"process_sort_index","pid":{0},"tid":{0},"args":{{"sort_index":{1}}}}})", process, order);
  }
  void name_thread(int process, int thread, const std::string& name) {
    add(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", process, thread, quoted(name));
  }
  template <typename... Values>
  void add(fmt::format_string<Values...> form, Values&&... values) {
    if (!text_.empty()) text_ += ",\n";
    fmt::format_to(std::back_inserter(text_), form, std::forward<Values>(values)...);
  }
  static std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }
  std::string time(std::int64_t ns) const { return microseconds(std::max<std::int64_t>(ns - zero_ns_, 0)); }

  std::int64_t zero_ns_;
  std::int64_t arrows_ = 0;
  std::string text_;
};

bool is_empty(const Trace& trace) {
  return trace.spans.empty() && trace.memory.empty();
}

std::int64_t first_moment(const std::vector<Trace>& traces, const std::vector<PipelineReport>& pipelines) {
  auto first = std::numeric_limits<std::int64_t>::max();
  for (const PipelineReport& pipeline : pipelines) {
    for (const auto& process : pipeline.processes) {
      for (const StageSpan& span : process.trace.spans) first = std::min(first, span.begin_ns);
      for (const StageSample& sample : process.trace.samples) first = std::min(first, sample.time_ns);
    }
  }
  for (const Trace& trace : traces) {
    for (const TraceSpan& span : trace.spans) first = std::min(first, span.begin_ns);
    for (const TraceSample& sample : trace.memory) first = std::min(first, sample.time_ns);
  }
  return first;
}

/// The time at which each reader began to make its messages of each step.
using PackTimes = std::map<std::pair<int, std::int64_t>, std::int64_t>;
PackTimes packed_by(const std::vector<Trace>& traces) {
  PackTimes packed;
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    for (const TraceSpan& span : traces[rank].spans) {
      const bool packs = span.thread == TraceThread::reader && span.kind == TraceKind::pack;
      if (packs) packed[{static_cast<int>(rank), span.step}] = span.begin_ns;
    }
  }
  return packed;
}

void add_arrows(Events& events, const std::vector<Trace>& traces) {
  const auto packed = packed_by(traces);
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    for (const TraceSpan& span : traces[rank].spans) {
      if (span.thread != TraceThread::step || span.kind != TraceKind::step) continue;
      const auto from = packed.find({span.other, span.step});
      if (from == packed.end()) continue;
      events.add_arrow(static_cast<std::size_t>(span.other), from->second, rank, span.begin_ns);
    }
  }
}

/// Returns whether the span belongs to the process or to a stage that the process runs.
bool has_track(const PipelineTracks& tracks, const StageSpan& span) {
  if (span.stage < 0) return span.work != StageWork::item;
  const auto stage = static_cast<std::size_t>(span.stage);
  return stage < tracks.process.stages.size() && !tracks.process.stages[stage].empty();
}

/// Adds a rate for each pair of consecutive samples within an epoch.
void add_rates(Events& events, const PipelineTracks& tracks) {
  const StageTrace& trace = tracks.process.trace;
  for (std::size_t i = 1; i < trace.samples.size(); ++i) {
    const StageSample &before = trace.samples[i - 1], &sample = trace.samples[i];
    const auto passed = sample.time_ns - before.time_ns;
    if (passed <= 0 || sample.items < before.items) continue;
    events.add_rate(tracks, before.time_ns,
                    1e9 * static_cast<double>(sample.items - before.items) / static_cast<double>(passed));
  }
}

/// Returns how many events were left out.
std::uint64_t add_pipelines(Events& events, const std::vector<PipelineReport>& pipelines, std::size_t ranks) {
  int number = process_of(ranks);
  std::uint64_t dropped = 0;
  for (const PipelineReport& pipeline : pipelines) {
    const auto count = pipeline.processes.size();
    for (std::size_t i = 0; i < count; ++i) {
      // The consumer is first in the data, and shown after the processes that it receives from.
      const PipelineTracks tracks{pipeline, pipeline.processes[(i + 1) % count], number};
      number += static_cast<int>(tracks.process.stages.size()) + 2;
      dropped += tracks.process.trace.dropped;
      events.name_tracks(tracks);
      for (const StageSpan& span : tracks.process.trace.spans) {
        if (has_track(tracks, span)) events.add_span(tracks, span);
      }
      add_rates(events, tracks);
    }
  }
  return dropped;
}

}  // namespace

std::string trace_json(const FeedReport& report, const std::vector<Trace>& traces,
                       const std::vector<PipelineReport>& pipelines) {
  Events events(first_moment(traces, pipelines));
  std::uint64_t dropped = 0;
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    const Trace& trace = traces[rank];
    if (is_empty(trace)) continue;
    const bool known = rank < report.ranks.size();
    events.name_rank(rank, fmt::format("rank {} {}", rank, known ? describe_coordinates(report.ranks[rank]) : ""),
                     known && report.ranks[rank].is_reader);
    for (const TraceSpan& span : trace.spans) events.add_span(rank, span);
    for (const TraceSample& sample : trace.memory) events.add_sample(rank, sample);
    dropped += trace.dropped;
  }
  add_arrows(events, traces);
  dropped += add_pipelines(events, pipelines, traces.size());
  const AnyJson about = {{"mesh", report.mesh},
                         {"readers", report.readers},
                         {"engine", report.engine},
                         {"steps_between_recorded_ones", traces.empty() ? 1 : traces.front().stride},
                         {"events_left_out", dropped}};
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[\n{}\n]}}\n", json_text(about),
                     std::move(events).take());
}

}  // namespace levada::report
