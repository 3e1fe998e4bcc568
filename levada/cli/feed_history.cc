#include "levada/cli/feed_history.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/atomic_file.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/report/history.h"
#include "levada/report/trace_json.h"

namespace levada::cli {
namespace {

constexpr std::string_view gathering = "gathering what ranks did";

void write_file(std::string_view what, const std::string& path, std::string_view text, bool tell) {
  AtomicFile file(path);
  file.write(as_bytes(text));
  file.sync();
  file.publish();
  if (tell) print_error(fmt::format("the {} is in {}", what, path));
}

}  // namespace

std::vector<OutputFile> outputs_of(const HistoryFiles& files) {
  std::vector<OutputFile> outputs;
  if (!files.report.empty()) outputs.push_back({"--report", files.report});
  if (!files.trace.empty()) outputs.push_back({"--trace", files.trace});
  return outputs;
}

TraceLog make_trace_log(int ranks) {
  constexpr std::size_t of_a_rank = 200'000, of_all = 1'000'000;
  return TraceLog(std::min(of_a_rank, of_all / static_cast<std::size_t>(ranks)));
}

std::vector<Bytes> gather(Engine& engine, ByteView mine, Deadline deadline, const std::function<void()>* poll) {
  const auto& info = engine.info();
  if (info.rank != 0) {
    const auto channel = engine.open(info.rank, {0}, 1);
    Block block = allocate(engine, mine.size(), deadline, gathering, {}, poll);
    std::copy(mine.begin(), mine.end(), block.memory().begin());
    publish(engine, *channel, std::move(block), mine.size(), deadline, gathering, poll);
    return {};
  }
  std::vector<Bytes> all = {Bytes(mine.begin(), mine.end())};
  for (int rank = 1; rank < info.size; ++rank) {
    const auto channel = engine.open(rank, {0}, 1);
    const auto lease = receive(engine, *channel, deadline, gathering, poll);
    all.push_back(lease ? Bytes(lease->bytes.begin(), lease->bytes.end()) : Bytes());
  }
  return all;
}

std::vector<Trace> gather_traces(Engine& engine, const Trace& mine, Deadline deadline) {
  std::vector<Trace> traces;
  for (const Bytes& bytes : gather(engine, encode(mine), deadline)) {
    traces.push_back(bytes.empty() ? Trace{} : decode_trace(bytes));
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
