#include <gmock/gmock.h>

#include "levada/pipeline/roles_testing.h"
#include "levada/tree/codec.h"

namespace levada::pipeline {
namespace {

using ::testing::HasSubstr;
using testing::kept;
using testing::mapped;
using testing::rest_of;
using testing::run_pipeline;
using testing::several;
using testing::take_from;

constexpr std::int64_t count = 23;

Graph dealt() {
  return Graph::source(range(0, count)).then(Shuffle{.buffer = 5}).then(Dispatch{});
}
Graph one_to_one() {
  return dealt().then(mapped([](std::int64_t i) { return 2 * i; }));
}
Graph item_by_item() {
  return dealt().then(kept([](std::int64_t i) { return i % 4 != 1; })).then(several(4));
}
Graph with_memory() {
  return dealt().then(Shuffle{.buffer = 3}).then(Batch{.size = 2});
}
Graph zipped() {
  return Graph::join(Zip{}, {dealt(), Graph::source(range(100, 200)).then(Shard{})}).then(Map{[](const Item& item) {
    return item;
  }});
}
Graph sharded() {
  const auto one_more = mapped([](std::int64_t i) { return i + 1; });
  return Graph::source(range(0, count)).then(one_more).then(Shard{}).then(one_more);
}
Graph early_end() {
  return dealt().then(Take{.count = 4});
}

ProcessOptions with_workers(int workers, bool ordered = false) {
  return {.workers = workers, .worker_prefetch = 3, .main_prefetch = 3, .ordered = ordered, .seed = 7};
}

struct Saved {
  std::vector<Tree> all;
  std::vector<Cursor> cursors;  ///< before each item, and behind the last
};

Saved saved_at_every_item(const Graph& graph, const ProcessOptions& options) {
  Saved saved;
  run_pipeline(graph, options, [&](Consumer& consumer) {
    consumer.reset(2);
    saved.cursors.push_back(consumer.save());
    while (auto item = consumer.next()) {
      saved.all.push_back(std::get<Tree>(*std::move(item)));
      saved.cursors.push_back(consumer.save());
    }
  });
  return saved;
}

void expect_goes_on(const Graph& graph, const ProcessOptions& options, const Saved& saved) {
  run_pipeline(graph, options, [&](Consumer& consumer) {
    for (std::size_t i = 0; i < saved.cursors.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "after item " << i);
      consumer.reset(2, saved.cursors[i]);
      // Once more, from a cursor that was saved by who had been resumed.
      const auto some = take_from(consumer, 3);
      const Cursor further = consumer.save();
      const auto begin = saved.all.begin() + static_cast<std::ptrdiff_t>(i);
      EXPECT_EQ(some, std::vector<Tree>(begin, begin + static_cast<std::ptrdiff_t>(some.size())));
      consumer.reset(2, further);
      EXPECT_EQ(rest_of(consumer),
                std::vector<Tree>(begin + static_cast<std::ptrdiff_t>(some.size()), saved.all.end()));
    }
  });
}

TEST(PipelineResume, GoesOnAtEveryItemWithAsManyWorkers) {
  for (const auto& graph : {one_to_one(), item_by_item(), with_memory(), zipped(), sharded(), early_end()}) {
    for (const int workers : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << graph.stages().back().name << " with " << workers << " workers");
      const auto options = with_workers(workers);
      expect_goes_on(graph, options, saved_at_every_item(graph, options));
    }
  }
}

TEST(PipelineResume, GoesOnAtEveryItemWithOtherWorkersWhereStagesAreOneToOne) {
  for (const auto& graph : {one_to_one(), sharded()}) {
    const Saved saved = saved_at_every_item(graph, with_workers(3));
    EXPECT_EQ(saved.all.size(), static_cast<std::size_t>(count));
    for (const int workers : {1, 2, 5}) {
      SCOPED_TRACE(::testing::Message() << graph.stages().back().name << " with " << workers << " workers");
      expect_goes_on(graph, with_workers(workers), saved);
    }
  }
}

TEST(PipelineResume, GoesOnWhereStagesRunInTheConsumer) {
  const auto options = with_workers(2, true);
  expect_goes_on(with_memory(), options, saved_at_every_item(with_memory(), options));
  const Graph ahead = with_memory().then(Prefetch{.depth = 2});
  expect_goes_on(ahead, options, saved_at_every_item(ahead, options));
}

TEST(PipelineResume, RefusesOtherWorkersWhereStagesAreNotOneToOne) {
  const Saved saved = saved_at_every_item(with_memory(), with_workers(3));
  run_pipeline(with_memory(), with_workers(2), [&](Consumer& consumer) {
    try {
      consumer.reset(2, saved.cursors[5]);
      ADD_FAILURE() << "it was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("with 3 workers"));
    }
    consumer.reset(0);
    EXPECT_FALSE(rest_of(consumer).empty());
  });
}

TEST(PipelineResume, RefusesTheCursorOfSomethingElse) {
  const Saved saved = saved_at_every_item(one_to_one(), with_workers(2));
  run_pipeline(one_to_one(), with_workers(2), [&](Consumer& consumer) {
    for (const Tree& bad : {Tree(3), Tree::dict({}), Tree::dict({{"epoch", 2}, {"stages", Tree::dict({})}})}) {
      EXPECT_THROW(consumer.reset(2, bad), InvalidArgument);
    }
    EXPECT_THROW(consumer.reset(3, saved.cursors[5]), InvalidArgument);
    consumer.reset(2, saved.cursors[5]);
    EXPECT_EQ(take_from(consumer, 1).front(), saved.all[5]);
  });
}

TEST(PipelineResume, SavesLittleHoweverMuchHasBeenGiven) {
  const Graph graph =
      Graph::source(range(0, 200000)).then(Dispatch{}).then(kept([](std::int64_t i) { return i % 1000 == 0; }));
  run_pipeline(graph, with_workers(2), [&](Consumer& consumer) {
    consumer.reset(0);
    EXPECT_EQ(take_from(consumer, 190).size(), 190u);
    const Cursor cursor = consumer.save();
    EXPECT_LT(encode_tree(cursor).size(), 8192u);
    const auto rest = rest_of(consumer);
    EXPECT_EQ(rest.size(), 10u);
    consumer.reset(0, cursor);
    EXPECT_EQ(rest_of(consumer), rest);
  });
}

}  // namespace
}  // namespace levada::pipeline
