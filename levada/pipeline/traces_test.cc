#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "levada/pipeline/processes_testing.h"

namespace levada::pipeline {
namespace {

using testing::mapped;
using testing::rest_of;
using testing::run_pipeline;

constexpr auto long_work = std::chrono::milliseconds(2);

/// Makes a pipeline whose second stage after the source, in the workers if there are any, is slow.
Graph with_slow_map(std::int64_t count) {
  return Graph::source(range(0, count))
      .then(Dispatch{})
      .then(mapped([](std::int64_t i) {
              std::this_thread::sleep_for(long_work);
              return i;
            }),
            "slow");
}

std::int64_t nanoseconds(const StageTrace& trace, StageWork work, std::int32_t stage = -1) {
  std::int64_t sum = 0;
  for (const auto& span : trace.spans) {
    if (span.work == work && span.stage == stage) sum += span.duration_ns;
  }
  return sum;
}

TEST(PipelineTraces, RecordTheWorkAndWaitsOfEachProcess) {
  const ProcessOptions options{.workers = 2, .worker_prefetch = 1, .main_prefetch = 1, .record = true};
  run_pipeline(with_slow_map(20), options, [](Consumer& consumer) {
    consumer.reset(0);
    EXPECT_EQ(rest_of(consumer).size(), 20u);
    const auto stats = consumer.stats();
    const auto traces = consumer.traces();
    ASSERT_EQ(traces.size(), 4u);
    ASSERT_EQ(stats.processes.size(), 4u);
    EXPECT_EQ(stats.processes[0].name, "process 0");
    EXPECT_EQ(stats.processes[1].role, Role::dispatcher);
    EXPECT_EQ(stats.processes[1].stages[0].items, 20);
    EXPECT_GT(nanoseconds(traces[0], StageWork::input), 0) << "the consumer waits for the workers";
    EXPECT_GT(nanoseconds(traces[1], StageWork::room), 0) << "the dispatching process waits for room in the workers";
    for (const int worker : {2, 3}) {
      EXPECT_EQ(stats.processes[static_cast<std::size_t>(worker)].stages[2].items, 10);
      const auto& trace = traces[static_cast<std::size_t>(worker)];
      EXPECT_GE(nanoseconds(trace, StageWork::item, 2), 10 * std::chrono::nanoseconds(long_work).count());
      EXPECT_EQ(nanoseconds(trace, StageWork::item, 0), 0) << "the source is elsewhere";
      EXPECT_EQ(trace.samples.empty(), false);
    }
  });
}

TEST(PipelineTraces, AreAvailableAfterShutdown) {
  const ProcessOptions options{.workers = 1, .record = true};
  run_pipeline(with_slow_map(5), options, [](Consumer& consumer) {
    consumer.reset(0);
    rest_of(consumer);
    ASSERT_TRUE(consumer.shutdown(std::chrono::seconds(20)));
    EXPECT_EQ(consumer.stats().stages[2].items, 5);
    EXPECT_GT(nanoseconds(consumer.traces().at(2), StageWork::item, 2), 0);
  });
}

TEST(PipelineTraces, AreRecordedOnlyOnRequestAndInTheConsumerWithoutWorkers) {
  run_pipeline(with_slow_map(5), {.record = true}, [](Consumer& consumer) {
    consumer.reset(0);
    rest_of(consumer);
    const auto traces = consumer.traces();
    ASSERT_EQ(traces.size(), 1u);
    EXPECT_GT(nanoseconds(traces[0], StageWork::item, 2), 0);
  });
  run_pipeline(with_slow_map(5), {.workers = 1}, [](Consumer& consumer) {
    consumer.reset(0);
    rest_of(consumer);
    EXPECT_THAT(consumer.traces(), ::testing::ElementsAre(StageTrace{}, StageTrace{}, StageTrace{}));
  });
}

}  // namespace
}  // namespace levada::pipeline
