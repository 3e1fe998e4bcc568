#include "levada/pipeline/pipeline_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "levada/base/error.h"
#include "levada/pipeline/processes_testing.h"
#include "levada/tree/codec.h"

namespace levada::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::number_in;

/// Converts number i to the sample {ids: [i, i + 100]}.
Map sample() {
  return {[](const Item& item) -> Item {
    const auto i = number_in(item);
    return Tree::dict({{"ids", Tensor::of<std::int64_t>({2}, {i, i + 100})}});
  }};
}

/// Opens the iterators of a graph, epoch after epoch.
class Epochs {
 public:
  explicit Epochs(Graph graph)
      : graph_(std::make_shared<Graph>(std::move(graph))), counts_(new Counts(graph_->stages().size())) {}

  IteratorPtr operator()(std::int64_t epoch) const {
    return open(
        *graph_, graph_->end(),
        {.traits = *traits_, .open_context = make_open_context(7, epoch, {}), .process = "test", .counts = *counts_});
  }

 private:
  std::shared_ptr<Graph> graph_;
  std::shared_ptr<TreeItemTraits> traits_ = std::make_shared<TreeItemTraits>();
  std::shared_ptr<Counts> counts_;
};

Graph samples(std::int64_t count) {
  return Graph::source(range(0, count)).then(Shuffle{.buffer = 4}).then(sample());
}

/// Returns the first id of each sample of a batch.
std::vector<std::int64_t> ids(const std::optional<Tree>& batch) {
  std::vector<std::int64_t> ids;
  const auto values = batch->tensor("ids").as<std::int64_t>();
  for (std::size_t i = 0; i < values.size(); i += 2) ids.push_back(values[i]);
  return ids;
}

std::vector<std::int64_t> read_all(PipelineSource& source, std::int64_t first, std::int64_t count) {
  HeapMemory memory;
  std::vector<std::int64_t> all;
  for (;; first += count) {
    const auto batch = source.read(first, count, memory);
    if (!batch) return all;
    for (const auto id : ids(batch)) all.push_back(id);
  }
}

TEST(PipelineSource, ReadsBatchesUntilTheEnd) {
  PipelineSource source(Epochs(Graph::source(range(0, 5)).then(sample())));
  HeapMemory memory;
  EXPECT_EQ(source.size(), std::nullopt);
  const auto batch = source.read(0, 3, memory);
  EXPECT_EQ(batch->tensor("ids").shape(), (Shape{3, 2}));
  EXPECT_THAT(batch->tensor("ids").as<std::int64_t>(), ElementsAre(0, 100, 1, 101, 2, 102));
  EXPECT_THAT(ids(source.read(3, 3, memory)), ElementsAre(3, 4));
  EXPECT_EQ(source.size(), 5);
  EXPECT_EQ(source.read(5, 3, memory), std::nullopt);
}

TEST(PipelineSource, ShufflesEachEpochDifferently) {
  PipelineSource source(Epochs(samples(7)), {.epochs = 3});
  auto all = read_all(source, 0, 4);
  ASSERT_EQ(all.size(), 21);
  const auto epoch = [&](std::size_t e) { return std::vector(all.begin() + 7 * e, all.begin() + 7 * (e + 1)); };
  EXPECT_NE(epoch(0), epoch(1));
  for (std::size_t e = 0; e < 3; ++e) EXPECT_THAT(epoch(e), ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST(PipelineSource, EndsAtAnEmptyEpochEvenIfEndless) {
  PipelineSource source(Epochs(samples(0)), {.epochs = 0});
  HeapMemory memory;
  EXPECT_EQ(source.read(0, 1, memory), std::nullopt);
  EXPECT_EQ(source.size(), 0);
}

TEST(PipelineSource, SkipsSamplesBetweenReadsAndRereadsTheLastOne) {
  PipelineSource source(Epochs(Graph::source(range(0, 9)).then(sample())));
  HeapMemory memory;
  EXPECT_THAT(ids(source.read(2, 2, memory)), ElementsAre(2, 3));
  EXPECT_THAT(ids(source.read(3, 1, memory)), ElementsAre(3));
  EXPECT_THAT(ids(source.read(3, 2, memory)), ElementsAre(3, 4));
  EXPECT_THROW(source.read(2, 1, memory), InvalidArgument);
  EXPECT_EQ(source.read(20, 1, memory), std::nullopt);
}

TEST(PipelineSource, RereadsTheLastSampleAfterARequestPastTheEnd) {
  PipelineSource source(Epochs(Graph::source(range(0, 5)).then(sample())));
  HeapMemory memory;
  EXPECT_THAT(ids(source.read(2, 2, memory)), ElementsAre(2, 3));
  EXPECT_EQ(source.read(6, 2, memory), std::nullopt);
  EXPECT_THAT(ids(source.read(4, 1, memory)), ElementsAre(4));
  EXPECT_THROW(source.read(3, 1, memory), InvalidArgument);
}

TEST(PipelineSource, ResumesAtEverySample) {
  const Epochs epochs(samples(7));
  PipelineSource whole(epochs, {.epochs = 3});
  const auto all = read_all(whole, 0, 1);
  for (std::int64_t read = 0; read <= 21; ++read) {
    for (std::int64_t next = std::max<std::int64_t>(read - 3, 0); next <= read + 3; ++next) {
      PipelineSource first(epochs, {.epochs = 3});
      HeapMemory memory;
      if (read >= 3) first.read(read - 3, 3, memory);
      else if (read > 0) first.read(0, read, memory);
      PipelineSource second(epochs, {.epochs = 3});
      ASSERT_EQ(second.resume(first.cursor(next)), next);
      const auto rest = read_all(second, next, 2);
      EXPECT_EQ(rest, std::vector(all.begin() + std::min<std::int64_t>(next, 21), all.end())) << read << ", " << next;
    }
  }
}

TEST(PipelineSource, ResumesFromACursorOfAResumedRun) {
  const Epochs epochs(samples(50));
  PipelineSource whole(epochs);
  const auto all = read_all(whole, 0, 1);
  PipelineSource first(epochs), second(epochs), third(epochs);
  HeapMemory memory;
  first.read(0, 20, memory);
  second.resume(first.cursor(20));
  third.resume(second.cursor(20));
  EXPECT_EQ(read_all(third, 20, 7), std::vector(all.begin() + 20, all.end()));
}

TEST(PipelineSource, ResumesAfterTheLastSampleOfAnEpochWithTheNextEpoch) {
  const Epochs epochs(samples(7));
  PipelineSource whole(epochs, {.epochs = 2}), source(epochs, {.epochs = 2});
  const auto all = read_all(whole, 0, 1);
  const auto drained = epochs(0);
  while (drained->next()) {
  }
  const Tree after_the_last = Tree::dict({{"stage", "pipeline samples"},
                                          {"epoch", 0},
                                          {"num_outputs", 7},
                                          {"stream", drained->save()},
                                          {"sample", 7},
                                          {"skip", 0}});
  EXPECT_EQ(source.resume(encode_tree(after_the_last)), 7);
  EXPECT_EQ(read_all(source, 7, 2), std::vector(all.begin() + 7, all.end()));
}

TEST(PipelineSource, RejectsCursorsOfAnotherPipeline) {
  PipelineSource source((Epochs(samples(7)))), other((Epochs(Graph::source(range(0, 7)).then(sample()))));
  HeapMemory memory;
  source.read(0, 3, memory);
  EXPECT_THROW(other.resume(source.cursor(3)), InvalidArgument);
  EXPECT_THROW(other.resume({}), CorruptMessage);
  EXPECT_THROW(other.resume(encode_tree(Tree::dict({{"stage", "map"}}))), InvalidArgument);
}

TEST(PipelineSource, RejectsInvalidCursors) {
  const Epochs epochs(samples(7));
  PipelineSource source(epochs);
  HeapMemory memory;
  source.read(0, 3, memory);
  const Bytes cursor = source.cursor(3);
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    Bytes broken = cursor;
    for (int i = 0; i < 1 + round % 3; ++i) broken[random() % broken.size()] = static_cast<std::byte>(random());
    if (round % 5 == 0) broken.resize(random() % broken.size());
    PipelineSource other(epochs);
    try {
      other.resume(broken);
      read_all(other, 3, 2);
    } catch (const Error&) {
    }
  }
}

TEST(PipelineSource, RejectsUnlikeSamplesAndObjectsOfAnotherLanguage) {
  const Map uneven = {
      [](const Item& item) -> Item { return Tree(Tensor::zeros(dtypes::int8, {1 + number_in(item)})); }};
  PipelineSource source(Epochs(Graph::source(range(0, 7)).then(uneven)), {.what = "lengths"});
  HeapMemory memory;
  EXPECT_THROW(source.read(0, 2, memory), SourceError);
  const Map foreign = {[](const Item&) -> Item { return LanguageObject(); }};
  PipelineSource objects(Epochs(Graph::source(range(0, 7)).then(foreign)), {.what = "objects"});
  try {
    objects.read(0, 1, memory);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_STREQ(error.what(), "sample 0 of objects is an object of another language; map it to tensors");
  }
}

TEST(PipelineSource, ReadsAPipelineWithSeparateProcesses) {
  const Graph graph = Graph::source(range(0, 23)).then(Shuffle{.buffer = 4}).then(Dispatch{}).then(sample());
  PipelineSource alone(Epochs(graph), {.epochs = 2});
  const auto all = read_all(alone, 0, 3);
  ASSERT_EQ(all.size(), 46);
  for (const std::int64_t read : {0, 5, 22, 23, 24, 46}) {
    Bytes cursor;
    const auto with_workers = [&](const testing::Consume& consume) {
      testing::run_pipeline(graph, {.workers = 2, .seed = 7}, consume);
    };
    with_workers([&](Consumer& consumer) {
      PipelineSource source(epochs_of({std::shared_ptr<void>(), &consumer}), {.epochs = 2});
      HeapMemory memory;
      std::vector<std::int64_t> before;
      if (read > 0) before = ids(source.read(0, read, memory));
      EXPECT_EQ(before, std::vector(all.begin(), all.begin() + read));
      cursor = source.cursor(read);
    });
    with_workers([&](Consumer& consumer) {
      PipelineSource source(epochs_of({std::shared_ptr<void>(), &consumer}), {.epochs = 2});
      source.resume(cursor);
      EXPECT_EQ(read_all(source, read, 4), std::vector(all.begin() + read, all.end())) << read;
    });
  }
}

TEST(PipelineSource, DescribesItsActivity) {
  PipelineSource source(Epochs(samples(7)), {.epochs = 2, .what = "numbers"});
  EXPECT_EQ(source.activity(), "making sample 0 of numbers, epoch 0");
  HeapMemory memory;
  source.read(0, 9, memory);
  EXPECT_EQ(source.activity(), "making sample 9 of numbers, epoch 1");
}

}  // namespace
}  // namespace levada::pipeline
