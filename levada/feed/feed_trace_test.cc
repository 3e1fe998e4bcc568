// Traces that a feed records.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "levada/engine/inproc/inproc.h"
#include "levada/feed/feed.h"
#include "levada/feed/source_testing.h"

namespace levada {
namespace {

using testing::Numbered;
using testing::NumberedOptions;

constexpr std::int64_t steps = 6;

/// Feeds `mesh` and returns each rank's trace. `own_step`: what a rank does with a batch.
std::vector<Trace> traces_of(
    const Mesh& mesh, FeedOptions options, const NumberedOptions& source,
    const std::function<void(int rank)>& own_step = [](int) {}) {
  std::vector<Trace> traces(static_cast<std::size_t>(mesh.size()));
  options.steps = steps;
  inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    TraceLog log;
    auto mine = options;
    mine.trace = &log;
    {
      Feed feed(engine, mesh, layouts::gpt(), std::make_shared<Numbered>(source), mine);
      while (feed.next()) own_step(engine->info().rank);
    }
    traces[static_cast<std::size_t>(engine->info().rank)] = log.trace();
  });
  return traces;
}

/// Returns the steps that have such a span.
std::set<std::int64_t> steps_with(const Trace& trace, TraceThread thread, TraceKind kind) {
  std::set<std::int64_t> found;
  for (const auto& span : trace.spans) {
    if (span.thread == thread && span.kind == kind) found.insert(span.step);
  }
  return found;
}

std::int64_t longest(const Trace& trace, TraceThread thread, TraceKind kind) {
  std::int64_t longest = 0;
  for (const auto& span : trace.spans) {
    if (span.thread == thread && span.kind == kind) longest = std::max(longest, span.duration_ns);
  }
  return longest;
}

const std::set<std::int64_t> all_steps = {0, 1, 2, 3, 4, 5};

TEST(FeedTrace, HasEveryStepOfEveryRankAndEveryRoundOfTheReader) {
  const auto traces = traces_of(Mesh::parse("dp=2,tp=2"), {.batch = 2}, {});
  for (const auto& trace : traces) {
    EXPECT_EQ(steps_with(trace, TraceThread::step, TraceKind::step), all_steps);
    for (const auto& span : trace.spans) {
      if (span.kind == TraceKind::step) {
        EXPECT_EQ(span.other, 0) << "whose batch it is";
      }
    }
  }
  EXPECT_EQ(steps_with(traces[0], TraceThread::reader, TraceKind::read), all_steps);
  EXPECT_EQ(steps_with(traces[0], TraceThread::reader, TraceKind::pack), all_steps);
  EXPECT_TRUE(steps_with(traces[1], TraceThread::reader, TraceKind::read).empty());
}

TEST(FeedTrace, HasTheTimeOfTheCallersOwnStep) {
  constexpr auto own = std::chrono::milliseconds(3);
  const auto traces = traces_of(Mesh::parse("dp=2"), {.batch = 2}, {}, [&](int) { std::this_thread::sleep_for(own); });
  for (const auto& trace : traces) {
    for (const auto& span : trace.spans) {
      if (span.kind == TraceKind::step) {
        EXPECT_GE(span.duration_ns, std::chrono::nanoseconds(own).count());
      }
    }
  }
}

TEST(FeedTrace, HasTheStorageTimeAndTheWaitForIt) {
  constexpr auto reading = std::chrono::milliseconds(20);
  NumberedOptions source;
  source.before = [&](std::int64_t) { std::this_thread::sleep_for(reading); };
  const auto traces = traces_of(Mesh::parse("tp=2"), {.batch = 2}, source);
  EXPECT_GE(longest(traces[0], TraceThread::reader, TraceKind::read), std::chrono::nanoseconds(reading).count());
  EXPECT_GT(longest(traces[1], TraceThread::step, TraceKind::handover), 0);
  for (const auto& span : traces[1].spans) {
    if (span.kind == TraceKind::handover) {
      EXPECT_EQ(span.other, 0) << "for its reader";
    }
  }
}

TEST(FeedTrace, NamesTheRankThatKeepsAReaderWaiting) {
  const auto slow = [](int rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  const auto traces = traces_of(Mesh::parse("dp=2"), {.batch = 2, .depth = 1}, {}, slow);
  std::map<int, std::int64_t> waited;
  for (const auto& span : traces[0].spans) {
    if (span.kind == TraceKind::room) waited[span.other] += span.duration_ns;
  }
  EXPECT_GT(waited[1], 0);
}

TEST(FeedTrace, CountsOnlyTheMemoryOfReaders) {
  const auto traces = traces_of(Mesh::parse("dp=2"), {.batch = 2}, {});
  const auto& samples = traces[0].memory;
  EXPECT_TRUE(std::any_of(samples.begin(), samples.end(), [](const auto& sample) { return sample.bytes > 0; }));
  EXPECT_TRUE(traces[1].memory.empty());
}

TEST(FeedTrace, NamesTheWaitForAnotherReader) {
  NumberedOptions source;
  source.before = [](std::int64_t first) {
    if (first % 4 == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // dp 1's batches
  };
  const auto traces = traces_of(Mesh::parse("dp=2"), {.batch = 2, .readers = Readers::parse("dp")}, source);
  EXPECT_GT(longest(traces[0], TraceThread::step, TraceKind::grant), 0);
}

}  // namespace
}  // namespace levada
