// report_pages FOLDER: writes report pages for report_in_browser.py from synthetic values: large.html of a feed of
// 3,000 ranks, and pipeline.html. Both contain names that the page must not interpret as markup.
#include <fstream>

#include "levada/pipeline/graph_testing.h"
#include "levada/pipeline/show.h"
#include "levada/report/history.h"
#include "levada/report/page.h"

namespace levada {
namespace {

constexpr int ranks = 3000, readers = 100;
constexpr std::int64_t steps = 80, ms = 1'000'000;
const std::string hostile =
    "</script><img src=x onerror=\"document.documentElement.dataset.pwned=1\">&amp;'`${1}\x01\xff\xe2\x80\xa8@DATA@";

/// Each step takes every rank 10 ms, after waiting 5 ms for its reader.
Trace trace_of(int rank) {
  Trace trace;
  const int reader = rank % readers;
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto begin = step * 15 * ms + rank % 7 * ms / 4;
    trace.spans.push_back({TraceKind::handover, TraceThread::step, reader, step, begin, 5 * ms});
    trace.spans.push_back({TraceKind::step, TraceThread::step, reader, step, begin + 5 * ms, 10 * ms});
    if (rank >= readers) continue;
    trace.spans.push_back({TraceKind::read, TraceThread::reader, -1, step, step * 15 * ms, 4 * ms});
    trace.spans.push_back({TraceKind::pack, TraceThread::reader, -1, step, step * 15 * ms + 4 * ms, 2 * ms});
    trace.memory.push_back({step, begin, static_cast<std::uint64_t>((rank % 13 + step % 3 + 1) << 20)});
  }
  return trace;
}

report::FeedReport feed_report() {
  report::FeedReport report;
  report.mesh = report.readers = report.engine_choice = hostile;
  report.batch = 4;
  report.sequence = 8192;
  report.steps = steps;
  report.samples = steps * ranks / 4;
  report.end_cause = "steps";
  report.bytes_consumed = std::uint64_t{1} << 34;
  for (int rank = 0; rank < ranks; ++rank) {
    report.ranks.push_back({.rank = rank,
                            .coordinates = {{rank == 1 ? hostile : "dp", rank / 4}, {"tp", rank % 4}},
                            .batches = steps,
                            .samples = 4 * steps,
                            .bytes = std::uint64_t{1} << 24,
                            .wait_seconds = 0.4 + 0.0001 * rank,
                            .seconds = 1.2,
                            .is_reader = rank < readers,
                            .bytes_read = rank < readers ? std::uint64_t{171} << 20 : 0});
  }
  report.balance.emplace(
      report::BalanceReport{.by = {.cost = SampleCost::parse("flops"), .max_tokens = 8192}, .ranks = 750});
  for (int step = 0; step < 2000; ++step) {
    report.balance->series.add({.steps = 1,
                                .samples = 3000,
                                .tokens = 6'000'000,
                                .micro_batches = 1,
                                .busiest = 102,
                                .unbalanced = step < 1000 ? 150.0 : 170.0,
                                .bound = 100,
                                .waiting = 115,
                                .waiting_bound = 101,
                                .mean = 80,
                                .padding = 120'000});
  }
  return report;
}

/// A dispatching process and two workers. The stage with the hostile name takes most of the time.
report::PipelineReport pipeline_report(int rank) {
  using pipeline::Role;
  const auto graph = pipeline::testing::numbers(1000)
                         .then(pipeline::Dispatch{})
                         .then(pipeline::testing::same(), hostile)
                         .then(pipeline::Batch{.size = 8});
  const auto placement = place(graph, 2);
  pipeline::Stats stats{.stages = {{1000, 0, 100 * ms, 0},
                                   {1000, 0, 0, 100 * ms},
                                   {998, 2, 18'000 * ms, 500 * ms},
                                   {125, 0, 200 * ms, 19'000 * ms}},
                        .seconds = 10};
  const pipeline::protocol::StageTotals none, half{499, 1, 9'000 * ms, 250 * ms}, batches{62, 0, 100 * ms, 9'500 * ms};
  stats.processes = {{"the consumer", Role::consumer, {none, none, none, none}},
                     {"the dispatching process", Role::dispatcher, {stats.stages[0], stats.stages[1], none, none}},
                     {"worker 0 " + hostile, Role::worker, {none, none, half, batches}},
                     {"worker 1", Role::worker, {none, none, half, batches}}};
  const pipeline::GraphView view{.graph = graph, .placement = placement, .workers = 2, .stats = &stats};
  return {.rank = rank, .json = to_json(view), .finding = describe_bottleneck(view), .processes = {}};
}

void write(const std::string& path, const std::string& page) {
  std::ofstream(path, std::ios::binary) << page;
}

}  // namespace
}  // namespace levada

int main(int count, char** arguments) {
  namespace report = levada::report;
  if (count != 2) return 2;
  const std::string folder = arguments[1];
  report::FeedHistory history{.paths = std::vector<std::string>(6, levada::hostile), .error = levada::hostile};
  const auto feed = levada::feed_report();
  for (int rank = 0; rank < levada::ranks; ++rank) {
    history.traces.push_back(levada::trace_of(rank));
    history.edges.push_back({rank % levada::readers, rank, feed.ranks[static_cast<std::size_t>(rank)].bytes});
    if (rank < levada::readers) history.pipelines.push_back(levada::pipeline_report(rank));
  }
  history.traces = report::explain_waits(std::move(history.traces));
  levada::write(folder + "/large.html", report::feed_page(feed, history));
  levada::write(folder + "/pipeline.html", report::pipeline_page(levada::pipeline_report(-1)));
  return 0;
}
