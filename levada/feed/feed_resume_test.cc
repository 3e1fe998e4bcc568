// Runs of balanced steps of a corpus that are stopped at any point and resumed on another mesh.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "levada/corpus/corpus_testing.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/feed/feed.h"
#include "levada/feed/step_cursor.h"
#include "levada/plan/layout.h"

namespace levada {
namespace {

constexpr std::int64_t step_samples = 24;

/// Returns the samples of a batch, each as the bytes of its tokens.
std::vector<std::string> samples_of(const Tree& batch, Packing packing) {
  const auto tokens = values<std::int64_t>(batch, "tokens");
  std::vector<std::int64_t> bounds;
  if (packing == Packing::documents) {
    const auto ends = values<std::int32_t>(batch, "cu_seqlens");
    bounds.assign(ends.begin(), ends.end());
  } else {
    const auto& shape = batch.tensor("tokens").shape();
    for (std::int64_t row = 0; row <= shape[0]; ++row) bounds.push_back(row * shape[1]);
  }
  std::vector<std::string> samples;
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    samples.emplace_back(tokens.begin() + bounds[i - 1], tokens.begin() + bounds[i]);
  }
  return samples;
}

struct Job {
  CorpusOptions corpus;
  Balance balance;
  Files files;

  std::shared_ptr<Corpus> open() const { return std::make_shared<Corpus>(open_files(files, corpus)); }
};

Job random_job(std::mt19937& random) {
  constexpr Packing packings[] = {Packing::cut, Packing::best_fit, Packing::documents};
  std::vector<std::string> texts;
  for (int d = 0; d < 300; ++d) texts.push_back(document(d, 1 + random() % (random() % 8 == 0 ? 120 : 30)));
  Job job{.corpus = {.sequence = 64, .shuffle_seed = random(), .epochs = 2, .packing = packings[random() % 3]},
          .balance = {.cost = SampleCost::parse(random() % 2 == 0 ? "tokens" : "flops(hidden=8)"),
                      .sizes = random() % 2 == 0 ? PartSizes::any : PartSizes::equal,
                      .order = static_cast<MicroOrder>(random() % 3)},
          .files = {{"a.jsonl", lines_of(texts)}}};
  if (random() % 4 != 0) job.balance.max_tokens = 64 + static_cast<std::int64_t>(random() % 300);
  return job;
}

/// The samples of each step, sorted.
using Steps = std::vector<std::vector<std::string>>;

Steps in_order(const Job& job) {
  const auto corpus = job.open();
  HeapMemory memory;
  Steps steps;
  for (std::int64_t at = 0; at + step_samples <= corpus->size().value(); at += step_samples) {
    steps.emplace_back();
    corpus->sizes(at, step_samples);
    for (std::int64_t number = at; number < at + step_samples; ++number) {
      const auto one = corpus->gather(std::vector{number}, memory);
      for (auto& sample : samples_of(one, job.corpus.packing)) steps.back().push_back(std::move(sample));
    }
    std::ranges::sort(steps.back());
  }
  return steps;
}

/// Resumes from `cursor` on a mesh for at most `batches` batches per rank, and adds the completed steps to `steps`.
/// Returns whether the data ended.
bool resume_feed(const Job& job, const Mesh& mesh, const char* readers, int batches, Bytes& cursor, Steps& steps) {
  std::mutex mutex;
  std::map<std::int64_t, std::vector<std::string>> given;
  Bytes reached = cursor;
  std::int64_t whole = 0;
  bool ended = false;
  inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    const auto corpus = job.open();
    FeedOptions options{
        .batch = step_samples / mesh.data_size(), .balance = job.balance, .readers = Readers::parse(readers)};
    if (!cursor.empty()) {
      auto start = StepCursor::decode(cursor);
      options.first_sample = corpus->resume(start.source);
      options.delayed = std::move(start.delayed);
    }
    Feed feed(engine, mesh, layouts::data_parallel(), corpus, options);
    const int rank = engine->info().rank;
    const bool counts = mesh.group(0, mesh.data_axes())[static_cast<std::size_t>(mesh.data_coordinate(rank))] == rank;
    for (int i = 0; i < batches; ++i) {
      const auto batch = feed.next();
      const std::lock_guard lock(mutex);
      ended = !batch;
      if (!batch) break;
      auto samples = samples_of(batch->tree(), job.corpus.packing);
      if (counts) std::ranges::move(samples, std::back_inserter(given[batch->step]));
      if (rank != 0 || batch->micro + 1 < batch->num_micro) continue;
      reached = batch->cursor;
      whole = batch->step + 1;
    }
    feed.close();
  });
  for (std::int64_t step = 0; step < whole; ++step) {
    std::ranges::sort(given[step]);
    steps.push_back(std::move(given[step]));
  }
  cursor = std::move(reached);
  return ended;
}

TEST(BalancedCorpora, YieldEachSampleOnceAcross200RestartsOnDifferentMeshes) {
  const std::vector<std::string> meshes = {"dp=1",      "dp=2",      "dp=3",      "dp=4",
                                           "dp=2,tp=2", "dp=3,pp=2", "dp=2,cp=2", "dp_replicate=2,dp_shard=2"};
  std::mt19937 random(1);
  for (int stops = 0; stops < 200;) {
    const Job job = random_job(random);
    Bytes cursor;
    Steps steps;
    bool ended = false;
    while (!ended) {
      const Mesh mesh = Mesh::parse(meshes[random() % meshes.size()]);
      const char* readers = random() % 2 == 0 ? "one" : "all";
      ended = resume_feed(job, mesh, readers, 1 + static_cast<int>(random() % 12), cursor, steps);
      stops += ended ? 0 : 1;
    }
    const auto expected = in_order(job);
    ASSERT_GT(expected.size(), 3u);
    ASSERT_EQ(steps.size(), expected.size());
    for (std::size_t step = 0; step < steps.size(); ++step) ASSERT_EQ(steps[step], expected[step]) << "step " << step;
  }
}

TEST(BalancedCorpora, ResumeWithTheDelayedSamples) {
  const std::vector<std::string> meshes = {"dp=4", "dp=4,tp=2", "dp=2,fsdp=2", "dp=4,pp=2"};
  std::mt19937 random(2);
  int waiting = 0;
  for (int turn = 0; turn < 20; ++turn) {
    Job job = random_job(random);
    job.corpus.packing = Packing::documents;
    job.corpus.sequence = 256;
    if (job.balance.max_tokens > 0) job.balance.max_tokens += 256;
    job.balance.max_delay = 1 + static_cast<std::int64_t>(random() % 10);
    Bytes start, cursor;
    Steps expected, steps;
    EXPECT_TRUE(resume_feed(job, Mesh::parse("dp=4"), "one", INT_MAX, start, expected));
    bool ended = false;
    while (!ended) {
      const Mesh mesh = Mesh::parse(meshes[random() % meshes.size()]);
      const char* readers = random() % 2 == 0 ? "one" : "all";
      ended = resume_feed(job, mesh, readers, 1 + static_cast<int>(random() % 12), cursor, steps);
      if (!cursor.empty()) waiting += StepCursor::decode(cursor).delayed.empty() ? 0 : 1;
    }
    ASSERT_EQ(steps, expected);
    std::map<std::string, int> left;
    for (const auto& step : in_order(job)) {
      for (const auto& sample : step) ++left[sample];
    }
    // Delays change which samples are left over at the end, fewer than a step.
    int others = 0;
    for (const auto& step : steps) {
      ASSERT_EQ(step.size(), static_cast<std::size_t>(step_samples));
      for (const auto& sample : step) others += --left[sample] < 0 ? 1 : 0;
    }
    EXPECT_LT(others, step_samples);
    EXPECT_EQ(steps.size(), in_order(job).size());
  }
  EXPECT_GT(waiting, 20);
}

TEST(BalancedCorpora, RejectAStateWithDelayedSamplesThatDoesNotFit) {
  const auto corpus = std::make_shared<Corpus>(
      open_files({{"a.jsonl", lines_of(std::vector<std::string>(100, "abc"))}}, {.packing = Packing::documents}));
  const auto fault_of = [&](const FeedOptions& options) {
    std::string fault;
    inproc::run_ranks(1, [&](const std::shared_ptr<Engine>& engine) {
      try {
        const Feed feed(engine, Mesh(), layouts::data_parallel(), corpus, options);
      } catch (const InvalidArgument& error) {
        fault = error.what();
      }
    });
    return fault;
  };
  const std::vector<DelayedSample> delayed = {{.number = 3}};
  EXPECT_EQ(fault_of({.balance = Balance(), .first_sample = 4, .delayed = delayed}), "");
  EXPECT_THAT(fault_of({.first_sample = 4, .delayed = delayed}), ::testing::HasSubstr("resume with balance"));
  EXPECT_THAT(fault_of({.balance = Balance(), .first_sample = 3, .delayed = delayed}),
              ::testing::HasSubstr("sample 3 is said to wait at sample 3"));
  EXPECT_THAT(fault_of({.balance = Balance{.max_delay = -1}}), ::testing::HasSubstr("max_delay is -1"));
}

TEST(BalancedCorpora, ReportTheUnbalancedWorkOfEachStepOnceNoSampleIsDelayed) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < 64; ++i) texts.emplace_back(1 + 7 * i % 64, 'a');
  const auto corpus =
      std::make_shared<Corpus>(open_files({{"a.jsonl", lines_of(texts)}}, {.packing = Packing::documents}));
  std::set<double> values;
  inproc::run_ranks(1, [&](const std::shared_ptr<Engine>& engine) {
    Feed feed(engine, Mesh(), layouts::data_parallel(), corpus,
              {.batch = 4, .balance = Balance(), .first_sample = 8, .delayed = {{.number = 3}}});
    while (feed.next()) {
    }
    const BalanceSeries balance = feed.balance();
    for (const auto& step : balance.entries()) values.insert(step.unbalanced);
  });
  EXPECT_GT(values.size(), 4u) << "the steps have different samples";
}

TEST(BalancedCorpora, RejectADepthThatLeavesNoRoomForTheFeedsOwnMessages) {
  inproc::run_ranks(1, [&](const std::shared_ptr<Engine>& engine) {
    const auto corpus = std::make_shared<Corpus>(open_files({{"a.jsonl", lines_of({"abc"})}}, {.sequence = 1}));
    try {
      const Feed feed(engine, Mesh(), layouts::data_parallel(), corpus, {.depth = INT_MAX});
      FAIL() << "not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("depth is 2147483647; it must be at most 1073741824"));
    }
  });
}

TEST(StepCursors, RoundTrip) {
  const StepCursor cursor{.source = Bytes(5, std::byte{7}), .delayed = {{.number = 2, .waited = 1}, {.number = 9}}};
  const auto bytes = cursor.encode();
  const auto again = StepCursor::decode(bytes);
  EXPECT_EQ(again.source, cursor.source);
  EXPECT_EQ(again.delayed, cursor.delayed);
  const StepCursor plain{.source = Bytes(5, std::byte{7})};
  EXPECT_EQ(plain.encode(), plain.source);
  EXPECT_EQ(StepCursor::decode(plain.source).source, plain.source);
  for (std::size_t at = 4; at < bytes.size(); ++at) {
    auto broken = bytes;
    broken[at] ^= std::byte{1};
    EXPECT_THROW(StepCursor::decode(broken), CorruptMessage) << at;
    EXPECT_THROW(StepCursor::decode(ByteView(bytes).first(at)), CorruptMessage) << at;
  }
}

}  // namespace
}  // namespace levada
