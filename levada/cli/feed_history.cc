#include "levada/cli/feed_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "levada/base/atomic_file.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/report/clock_shift.h"
#include "levada/report/history.h"
#include "levada/report/trace_json.h"

namespace levada::cli {
namespace {

constexpr std::string_view gathering = "gathering the history";
constexpr std::string_view comparing = "comparing clocks";
constexpr int max_round_trips = 10;

/// The deadline and poll of a rank's waits.
struct WaitOptions {
  Deadline deadline;
  const std::function<void()>* poll;
};

void send(Engine& engine, Channel& channel, ByteView bytes, const WaitOptions& waiting, std::string_view what) {
  Block block = allocate(engine, bytes.size(), waiting.deadline, what, {}, waiting.poll);
  std::copy(bytes.begin(), bytes.end(), block.memory().begin());
  publish(engine, channel, std::move(block), bytes.size(), waiting.deadline, what, waiting.poll);
}

Bytes encode_time(std::int64_t ns) {
  ByteWriter writer;
  writer.put(ns);
  return std::move(writer).take();
}

/// Rank 0's channels to and from a rank whose clock it queries.
struct ClockChannels {
  ClockChannels(Engine& engine, int rank) : questions(engine.open(0, {rank}, 1)), answers(engine.open(rank, {0}, 1)) {}
  std::shared_ptr<Channel> questions, answers;
};

/// Answers with the current time until rank 0 closes its channel.
void answer_questions(Engine& engine, const WaitOptions& waiting, const ReadClock& now) {
  const ClockChannels channels(engine, engine.info().rank);
  while (receive(engine, *channels.questions, waiting.deadline, comparing, waiting.poll)) {
    send(engine, *channels.answers, encode_time(now()), waiting, comparing);
  }
}

/// Returns nothing if the rank has left.
std::optional<std::int64_t> ask_for_shift(Engine& engine, const ClockChannels& channels, const WaitOptions& waiting,
                                          const ReadClock& now) {
  std::optional<report::RoundTrip> shortest;
  for (int i = 0; i < max_round_trips; ++i) {
    report::RoundTrip trip{.asked_ns = now()};
    send(engine, *channels.questions, encode_time(trip.asked_ns), waiting, comparing);
    const auto answer = receive(engine, *channels.answers, waiting.deadline, comparing, waiting.poll);
    if (!answer) return {};
    trip.answered_ns = now();
    trip.there_ns = ByteReader(answer->bytes).get_at_least<std::int64_t>(0, "time");
    if (!shortest || trip.duration_ns() < shortest->duration_ns()) shortest = trip;
  }
  return report::clock_shift(*shortest);
}

void write_file(std::string_view what, const std::string& path, std::string_view text, bool tell) {
  AtomicFile file(path);
  file.write(as_bytes(text));
  file.sync();
  file.publish();
  if (tell) print_error(fmt::format("wrote the {} to {}", what, path));
}

}  // namespace

std::vector<OutputFile> outputs_of(const HistoryFiles& files) {
  std::vector<OutputFile> outputs;
  if (!files.report.empty()) outputs.push_back({"--report", files.report});
  if (!files.trace.empty()) outputs.push_back({"--trace", files.trace});
  return outputs;
}

TraceLog make_trace_log(int ranks) {
  constexpr std::size_t max_per_rank = 200'000, max_in_all = 1'000'000;
  return TraceLog(std::min(max_per_rank, max_in_all / static_cast<std::size_t>(ranks)));
}

std::vector<std::int64_t> clock_shifts(Engine& engine, Deadline deadline, const std::function<void()>* poll,
                                       const ReadClock& now) {
  const auto& info = engine.info();
  const WaitOptions waiting{deadline, poll};
  const auto host_of = [&](int rank) { return info.host_of.at(static_cast<std::size_t>(rank)); };
  if (info.rank != 0) {
    if (host_of(info.rank) != host_of(0)) answer_questions(engine, waiting, now);
    return {};
  }
  std::map<int, std::int64_t> of_host = {{host_of(0), 0}};
  for (int rank = 1; rank < info.size; ++rank) {
    if (host_of(rank) == host_of(0)) continue;
    const ClockChannels channels(engine, rank);
    if (of_host.contains(host_of(rank))) continue;
    if (const auto shift = ask_for_shift(engine, channels, waiting, now)) of_host[host_of(rank)] = *shift;
  }
  std::vector<std::int64_t> shifts;
  for (const int host : info.host_of) shifts.push_back(of_host[host]);
  return shifts;
}

std::vector<RankMessage> gather(Engine& engine, ByteView mine, Deadline deadline, const std::function<void()>* poll) {
  const auto& info = engine.info();
  const auto shifts = clock_shifts(engine, deadline, poll);
  if (info.rank != 0) {
    const auto channel = engine.open(info.rank, {0}, 1);
    send(engine, *channel, mine, {deadline, poll}, gathering);
    return {};
  }
  std::vector<RankMessage> all = {{.bytes = Bytes(mine.begin(), mine.end())}};
  for (int rank = 1; rank < info.size; ++rank) {
    const auto channel = engine.open(rank, {0}, 1);
    const auto lease = receive(engine, *channel, deadline, gathering, poll);
    all.push_back({.bytes = lease ? Bytes(lease->bytes.begin(), lease->bytes.end()) : Bytes(),
                   .clock_shift_ns = shifts[static_cast<std::size_t>(rank)]});
  }
  return all;
}

std::vector<Trace> gather_traces(Engine& engine, const Trace& mine, Deadline deadline) {
  std::vector<Trace> traces;
  for (const RankMessage& message : gather(engine, encode(mine), deadline)) {
    traces.push_back(message.bytes.empty() ? Trace{} : decode_trace(message.bytes));
    report::shift_times(traces.back(), message.clock_shift_ns);
  }
  return traces;
}

void write_history(const HistoryFiles& files, const report::FeedReport& report, report::FeedHistory history) {
  history.traces = report::explain_waits(std::move(history.traces));
  if (!files.report.empty()) write_file("report", files.report, report::feed_page(report, history), files.tell);
  if (!files.trace.empty())
    write_file("trace", files.trace, report::trace_json(report, history.traces, history.pipelines), files.tell);
}

void write_history(const HistoryFiles& files, const report::PipelineReport& pipeline) {
  if (!files.report.empty()) write_file("report", files.report, report::pipeline_page(pipeline), files.tell);
  if (!files.trace.empty()) write_file("trace", files.trace, report::trace_json({}, {}, {pipeline}), files.tell);
}

}  // namespace levada::cli
