#include "levada/feed/feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "levada/base/copy.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/feed/source_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;
using testing::Numbered;
using testing::NumberedOptions;
using ::testing::ThrowsMessage;

/// Runs `body` on every rank of `mesh` with a feed; each rank has its own source.
void run_feed(const Mesh& mesh, const FeedOptions& options, const NumberedOptions& source,
              const std::function<void(Feed&, int rank)>& body, const Layout& layout = layouts::gpt()) {
  inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    Feed feed(engine, mesh, layout, std::make_shared<Numbered>(source), options);
    body(feed, engine->info().rank);
  });
}

Tensor take_columns(const Tensor& tensor, const std::vector<std::int64_t>& columns) {
  const auto rows = tensor.shape()[0];
  Tensor taken = Tensor::empty(tensor.dtype(), {rows, static_cast<std::int64_t>(columns.size())});
  const std::size_t item = tensor.dtype().bytes(1);
  auto to = taken.mutable_bytes();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const auto column : columns) {
      const auto from = tensor.bytes().subspan(static_cast<std::size_t>(row * tensor.shape()[1] + column) * item, item);
      std::copy(from.begin(), from.end(), to.begin());
      to = to.subspan(item);
    }
  }
  return taken;
}

/// Returns the part of a batch that a rank must receive, derived directly from the definition of a GPT step, without
/// planner or engine.
Tree part_of(const Tree& whole, const Mesh& mesh, int rank) {
  const auto at = [&](const char* axis) { return mesh.coordinate(rank, axis); };
  const std::int64_t sequence = whole.tensor("tokens").shape()[1];
  const std::int64_t ranks = mesh.axis_size("cp"), chunk = sequence / (2 * ranks);
  std::vector<std::int64_t> columns;
  for (const std::int64_t part : {std::int64_t{at("cp")}, 2 * ranks - 1 - at("cp")}) {
    for (std::int64_t j = 0; j < chunk; ++j) columns.push_back(part * chunk + j);
  }
  if (ranks == 1) {
    columns.clear();
    for (std::int64_t j = 0; j < sequence; ++j) columns.push_back(j);
  }
  const bool is_first = at("pp") == 0, is_last = at("pp") == mesh.axis_size("pp") - 1;
  const std::map<std::string, bool> wanted = {
      {"tokens", is_first}, {"position_ids", is_first}, {"labels", is_last}, {"loss_mask", is_last}};
  std::vector<std::pair<Key, Tree>> items;
  for (const char* name : {"tokens", "labels", "loss_mask", "position_ids"}) {
    if (wanted.at(name)) items.emplace_back(name, Tree(take_columns(whole.tensor(name), columns)));
  }
  return Tree::dict(std::move(items));
}

Tree expected(const Mesh& mesh, int rank, std::int64_t step, std::int64_t batch, std::int64_t sequence) {
  const std::int64_t first = (step * mesh.data_size() + mesh.data_coordinate(rank)) * batch;
  HeapMemory heap;
  return part_of(Numbered::batch(first, batch, sequence, heap), mesh, rank);
}

/// Returns the expected last round, which the data does not fill, under the tail option.
Tree expected_tail(const Mesh& mesh, int rank, const FeedOptions& options, std::int64_t step,
                   const NumberedOptions& data) {
  const std::int64_t first = (step * mesh.data_size() + mesh.data_coordinate(rank)) * options.batch;
  const auto there = std::clamp<std::int64_t>(data.samples - first, 0, options.batch);
  const auto rows = options.tail == Tail::pad ? options.batch : there;
  HeapMemory heap;
  Tree whole = Numbered::batch(first, rows, data.sequence, heap);
  const Tree last = Numbered::batch(data.samples - 1, 1, data.sequence, heap);
  for (const char* name : {"tokens", "labels", "position_ids", "loss_mask"}) {
    auto field = whole.tensor(name);
    const auto source = last.tensor(name).bytes();
    for (std::int64_t row = there; row < rows; ++row) {
      const auto to = field.mutable_bytes().subspan(static_cast<std::size_t>(row) * source.size(), source.size());
      if (std::string_view(name) == "loss_mask") std::ranges::fill(to, std::byte{0});
      else std::ranges::copy(source, to.begin());
    }
  }
  return part_of(whole, mesh, rank);
}

class FeedOverMeshes : public ::testing::TestWithParam<const char*> {};

TEST_P(FeedOverMeshes, EveryRankReceivesItsPartOnceForAllReaders) {
  const Mesh mesh = Mesh::parse(GetParam());
  for (const char* readers : {"one", "all", "host", "dp", "dp,pp"}) {
    for (const bool in_memory_given : {true, false}) {
      const std::int64_t dp = mesh.data_size(), batch = 2, sequence = 12, rounds = 5;
      const NumberedOptions source{.samples = rounds * dp * batch + dp * batch - 1,
                                   .sequence = sequence,
                                   .known_size = in_memory_given,
                                   .in_memory_given = in_memory_given};
      run_feed(mesh, {.batch = batch, .readers = Readers::parse(readers)}, source, [&](Feed& feed, int rank) {
        std::int64_t step = 0;
        while (auto got = feed.next()) {
          EXPECT_EQ(got->step, step);
          EXPECT_EQ(got->tree(), expected(mesh, rank, step, batch, sequence)) << readers << " rank " << rank;
          ByteReader cursor(got->cursor);
          EXPECT_EQ(cursor.get<std::int64_t>(), (step + 1) * dp * batch);
          ++step;
        }
        EXPECT_EQ(step, rounds) << "the incomplete round is dropped on all ranks";
        ASSERT_TRUE(feed.end());
        EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::exhausted);
        EXPECT_EQ(feed.end()->at.step, rounds);
        EXPECT_FALSE(feed.next()) << "the end stays the end";
      });
    }
  }
}

TEST_P(FeedOverMeshes, TheTailIsDroppedPaddedOrShortForEveryDivide) {
  const Mesh mesh = Mesh::parse(GetParam());
  const std::int64_t dp = mesh.data_size(), batch = 3, rounds = 2;
  for (const char* readers : {"one", "all", "dp"}) {
    for (const Divide divide : {Divide::deal, Divide::split}) {
      for (const Tail tail : {Tail::drop, Tail::pad, Tail::short_}) {
        for (const std::int64_t over : {std::int64_t{1}, dp * batch - 1}) {
          const NumberedOptions data{
              .samples = rounds * dp * batch + over, .sequence = 12, .known_size = divide == Divide::split};
          const FeedOptions options{.batch = batch, .divide = divide, .tail = tail, .readers = Readers::parse(readers)};
          run_feed(mesh, options, data, [&](Feed& feed, int rank) {
            std::int64_t samples = 0, step = 0;
            while (auto got = feed.next()) {
              const bool is_tail = step++ == rounds;
              samples += got->samples;
              EXPECT_EQ(got->tree(), is_tail ? expected_tail(mesh, rank, options, got->step, data)
                                             : expected(mesh, rank, got->step, batch, 12))
                  << readers << " rank " << rank << " step " << got->step;
              ByteReader cursor(got->cursor);
              const auto next = cursor.get<std::int64_t>();
              EXPECT_GE(next, std::min(step * dp * batch, data.samples));
              EXPECT_LE(next, data.known_size ? std::min(step * dp * batch, data.samples) : step * dp * batch);
            }
            EXPECT_EQ(step, rounds + (tail == Tail::drop ? 0 : 1));
            const auto own = std::clamp<std::int64_t>(over - mesh.data_coordinate(rank) * batch, 0, batch);
            EXPECT_EQ(samples, rounds * batch + (tail == Tail::drop ? 0 : own));
          });
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, FeedOverMeshes,
                         ::testing::Values("", "dp=2", "tp=2", "cp=2", "pp=2", "dp=2,tp=2", "dp=2,cp=2", "dp=2,pp=2",
                                           "cp=2,tp=2", "cp=2,pp=2", "tp=2,pp=2", "dp=2,cp=2,tp=2", "dp=2,cp=2,pp=2",
                                           "dp=2,tp=2,pp=2", "cp=2,tp=2,pp=2", "dp=2,cp=2,tp=2,pp=2", "dp=3", "cp=3",
                                           "dp=3,tp=2", "pp=3,dp=2", "cp=3,dp=2", "tp=3,pp=2", "data=3", "fsdp=2,tp=2",
                                           "dp_replicate=2,dp_shard=2", "dp_replicate=2,tp=2,dp_shard=2,ep=1",
                                           "pp=2,dp=2,ddp=2"));

TEST(Feed, StopsAfterTheRequestedSteps) {
  run_feed(Mesh::parse("dp=2"), {.batch = 1, .steps = 3}, {}, [](Feed& feed, int) {
    for (int step = 0; step < 3; ++step) EXPECT_TRUE(feed.next());
    EXPECT_FALSE(feed.next());
    EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::steps);
  });
}

TEST(Feed, SkippingBeyondTheEndStopsAllRanks) {
  for (const Tail tail : {Tail::drop, Tail::pad, Tail::short_}) {
    run_feed(Mesh::parse("dp=2"), {.batch = 4, .tail = tail, .first_sample = 1000}, {.samples = 10},
             [](Feed& feed, int) {
               EXPECT_FALSE(feed.next());
               EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::exhausted);
             });
  }
}

TEST(Feed, ADroppedTailIsNeverReadTwice) {
  for (const bool known_size : {true, false}) {
    std::int64_t last = -1;
    const NumberedOptions source{.samples = 7, .known_size = known_size, .before = [&](std::int64_t first) {
                                   EXPECT_GT(first, last);
                                   last = first;
                                 }};
    run_feed(Mesh(), {.batch = 3}, source, [](Feed& feed, int) {
      EXPECT_TRUE(feed.next());
      EXPECT_TRUE(feed.next());
      EXPECT_FALSE(feed.next());
    });
  }
}

TEST(Feed, ARequestedStopEndsAllRanksAtTheSameStep) {
  for (const char* readers : {"one", "all", "dp"}) {
    std::mutex mutex;
    std::set<std::int64_t> last_steps, ends;
    run_feed(Mesh::parse("dp=2,tp=2"), {.batch = 1, .readers = Readers::parse(readers)}, {.samples = 100'000},
             [&](Feed& feed, int rank) {
               std::int64_t last = -1;
               while (auto batch = feed.next()) {
                 last = batch->step;
                 if (rank == 2 && last == 5) feed.request_stop();
               }
               const std::lock_guard lock(mutex);
               last_steps.insert(last);
               ends.insert(feed.end()->at.step);
               EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::stopped);
             });
    ASSERT_EQ(last_steps.size(), 1u) << readers;
    EXPECT_EQ(*ends.begin(), *last_steps.begin() + 1);
    EXPECT_GE(*last_steps.begin(), 5);
    EXPECT_LT(*last_steps.begin(), 1000) << "soon";
  }
}

TEST(Feed, ResumesAtTheSampleOfACursor) {
  const Mesh mesh = Mesh::parse("dp=2");
  run_feed(mesh, {.batch = 1, .first_sample = 6}, {.samples = 10}, [](Feed& feed, int rank) {
    EXPECT_EQ(feed.next()->tensor("tokens").as<std::int64_t>()[0], 1000 * (6 + rank));
    EXPECT_TRUE(feed.next());
    EXPECT_FALSE(feed.next());
  });
}

/// Returns the payload that all ranks copy in `steps` steps of a feed.
std::uint64_t copied_in(std::int64_t steps, bool in_memory_given) {
  const auto before = copied_bytes();
  const NumberedOptions source{.samples = 8 * steps, .sequence = 256, .in_memory_given = in_memory_given};
  run_feed(Mesh::parse("dp=2,tp=2"), {.batch = 4}, source, [](Feed& feed, int) {
    while (feed.next()) {
    }
  });
  return copied_bytes() - before;
}

TEST(Feed, WholeTensorsCreatedInTheGivenMemoryAreNotCopied) {
  EXPECT_EQ(copied_in(12, true), copied_in(2, true)) << "except at the start";
}

TEST(Feed, TensorsCreatedElsewhereAreCopiedOnce) {
  EXPECT_EQ(copied_in(12, false) - copied_in(2, false), 10u * 8 * 256 * (8 + 8 + 8 + 4));
}

TEST(Feed, TheFirstPipelineStageCanBeAWholeScheduleAheadOfTheLast) {
  const Mesh mesh = Mesh::parse("pp=4");
  std::latch first_has_four(1);
  run_feed(mesh, {.batch = 1, .depth = 4}, {.samples = 12}, [&](Feed& feed, int rank) {
    if (rank == 3) first_has_four.wait();
    for (int step = 0; step < 12; ++step) {
      EXPECT_TRUE(feed.next());
      if (rank == 0 && step == 3) first_has_four.count_down();
    }
    EXPECT_FALSE(feed.next());
  });
}

TEST(Feed, KeepingEveryBatchBlocksNoRankAndPreservesThem) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  run_feed(mesh, {.batch = 1, .depth = 2}, {.samples = 400}, [&](Feed& feed, int rank) {
    std::vector<Batch> kept;
    while (auto batch = feed.next()) kept.push_back(std::move(*batch));
    ASSERT_EQ(kept.size(), 200u);
    for (const Batch& batch : kept) EXPECT_EQ(batch.tree(), expected(mesh, rank, batch.step, 1, 8));
    EXPECT_EQ(feed.stats().copied_batches, 198);
  });
}

TEST(Feed, BatchesOutliveTheFeedAndItsEngine) {
  std::vector<std::optional<Batch>> kept(2);
  run_feed(Mesh::parse("dp=2"), {.batch = 1}, {}, [&](Feed& feed, int rank) { kept[rank] = feed.next(); });
  EXPECT_EQ(kept[1]->tree(), expected(Mesh::parse("dp=2"), 1, 0, 1, 8));
}

TEST(Feed, TensorsOfABatchAreFoundByPath) {
  run_feed(Mesh::parse("dp=2"), {.batch = 1}, {}, [](Feed& feed, int) {
    const auto batch = feed.next();
    const auto tokens = batch->tensor("tokens");
    EXPECT_EQ(Tree(tokens), Tree(batch->tree().tensor("tokens")));
    EXPECT_EQ(batch->tensor("\"tokens\"").view().data(), tokens.view().data()) << "another way to write the path";
    EXPECT_THAT([&] { return batch->tensor("nothing"); }, ThrowsMessage<InvalidArgument>(HasSubstr("tokens")));
  });
}

/// Waits until a batch has arrived. Requires that one will.
FlatTree ahead_of(Feed& feed) {
  for (const auto deadline = Deadline::after(std::chrono::seconds(60)); !deadline.expired();) {
    if (auto content = feed.receive_ahead()) return std::move(*content);
    std::this_thread::yield();
  }
  ADD_FAILURE() << "no batch has arrived";
  return {};
}

TEST(Feed, ABatchReceivedAheadIsReturnedAndCountedByNext) {
  for (const char* readers : {"one", "all", "dp"}) {
    const Mesh mesh = Mesh::parse("dp=2,tp=2");
    run_feed(mesh, {.batch = 1, .readers = Readers::parse(readers)}, {.samples = 8}, [&](Feed& feed, int rank) {
      EXPECT_EQ(feed.next()->tree(), expected(mesh, rank, 0, 1, 8));
      for (int step = 1; step < 4; ++step) {
        EXPECT_EQ(unflatten(ahead_of(feed)), expected(mesh, rank, step, 1, 8)) << readers;
        EXPECT_FALSE(feed.receive_ahead()) << "no more than one";
        EXPECT_EQ(feed.stats().batches, step);
        const auto batch = feed.next();
        EXPECT_EQ(batch->step, step);
        EXPECT_TRUE(batch->content.leaves.empty());
        ByteReader cursor(batch->cursor);
        EXPECT_EQ(cursor.get<std::int64_t>(), 2 * (step + 1));
        EXPECT_EQ(feed.stats().batches, step + 1);
      }
      for (int i = 0; i < 100; ++i) EXPECT_FALSE(feed.receive_ahead());
      EXPECT_FALSE(feed.end()) << "which next() alone comes to";
      EXPECT_FALSE(feed.next());
      EXPECT_EQ(feed.end()->at.step, 4);
      EXPECT_FALSE(feed.receive_ahead());
    });
  }
}

TEST(Feed, NothingIsReadAheadIfTheCallerReadsInsideNext) {
  run_feed(Mesh(), {.batch = 1, .ahead = false}, {.samples = 2}, [](Feed& feed, int) {
    EXPECT_FALSE(feed.receive_ahead());
    EXPECT_TRUE(feed.next());
    EXPECT_FALSE(feed.receive_ahead());
    EXPECT_TRUE(feed.next());
    EXPECT_FALSE(feed.next());
  });
}

TEST(Feed, TakeTimeIncludesTheWaitsForBatches) {
  run_feed(Mesh::parse("dp=2"), {.batch = 1}, {}, [](Feed& feed, int) {
    EXPECT_TRUE(feed.next());
    const auto stats = feed.stats();
    EXPECT_GT(stats.taking, Duration{});
    EXPECT_GE(stats.taking, stats.waited);
  });
}

TEST(Feed, AccessCopyReturnsMemoryOfTheRank) {
  run_feed(Mesh::parse("tp=2"), {.batch = 1, .access = Access::copy}, {}, [](Feed& feed, int) {
    auto batch = feed.next();
    EXPECT_TRUE(batch->tensor("tokens").is_writable());
  });
  run_feed(Mesh::parse("tp=2"), {.batch = 1}, {},
           [](Feed& feed, int) { EXPECT_FALSE(feed.next()->tensor("tokens").is_writable()); });
}

/// A batch of another structure at every step, with plain values and one tensor under two names.
class Changing final : public Source {
 public:
  std::optional<std::int64_t> size() const override { return at_end_ ? std::optional<std::int64_t>(4) : std::nullopt; }
  std::optional<Tree> read(std::int64_t first, std::int64_t, Memory&) override {
    at_end_ = first >= 4;
    if (at_end_) return std::nullopt;
    return content(first);
  }
  Bytes cursor(std::int64_t) const override { return {}; }
  std::string activity() const override { return ""; }
  ReadStats stats() const override { return {}; }

  static Tree content(std::int64_t first) {
    const Tensor tokens = Tensor::of<std::int64_t>({1, 2}, {first, first + 1});
    std::vector<std::pair<Key, Tree>> items = {{"tokens", Tree(tokens)}, {"labels", Tree(tokens)}};
    if (first % 2 == 1) items.emplace_back("meta", Tree::list({Tree(first), Tree("text"), Tree(None{})}));
    return Tree::dict(std::move(items));
  }

 private:
  bool at_end_ = false;
};

TEST(Feed, BatchesMayDifferInStructureFromStepToStep) {
  inproc::run_ranks(4, [](const std::shared_ptr<Engine>& engine) {
    const Mesh mesh = Mesh::parse("dp=2,tp=2");
    Feed feed(engine, mesh, layouts::data_parallel(), std::make_shared<Changing>(), {.batch = 1});
    const int dp = mesh.data_coordinate(engine->info().rank);
    for (std::int64_t step = 0; step < 2; ++step) EXPECT_EQ(feed.next()->tree(), Changing::content(2 * step + dp));
    EXPECT_FALSE(feed.next());
  });
}

TEST(Feed, WithoutReadAheadARoundIsReadOnlyInsideNext) {
  for (const char* readers : {"one", "dp", "all"}) {
    inproc::run_ranks(4, [&](const std::shared_ptr<Engine>& engine) {
      std::atomic<int> reads{0};
      const auto count = [&](std::int64_t) { ++reads; };
      Feed feed(engine, Mesh::parse("dp=2,tp=2"), layouts::gpt(),
                std::make_shared<Numbered>(NumberedOptions{.before = count}),
                {.batch = 1, .readers = Readers::parse(readers), .ahead = false});
      const int a_round = !feed.is_reader() ? 0 : std::string_view(readers) == "one" ? 2 : 1;
      // In the first round all readers compare the first unit, and rank 2 reads it only for that.
      const int compared = std::string_view(readers) == "dp" && engine->info().rank == 2 ? 1 : 0;
      for (int step = 0; step < 5; ++step) {
        EXPECT_EQ(reads, step * a_round + (step > 0 ? compared : 0)) << readers;
        EXPECT_EQ(feed.next()->step, step);
        EXPECT_EQ(reads, (step + 1) * a_round + compared) << readers;
      }
    });
  }
}

TEST(Feed, AnAbandonedReadCountsAsADeparture) {
  inproc::run_ranks(2, [](const std::shared_ptr<Engine>& engine) {
    const auto abandon = [](std::int64_t first) {
      if (first >= 6) throw ReadAbandoned();
    };
    Feed feed(engine, Mesh::parse("dp=2"), layouts::gpt(),
              std::make_shared<Numbered>(NumberedOptions{.before = abandon}), {.batch = 1});
    for (int step = 0; step < 3; ++step) EXPECT_TRUE(feed.next());
    EXPECT_THROW(feed.next(), PeerLost);
    EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::abandoned);
    EXPECT_EQ(feed.end()->rank, 0);
  });
}

TEST(Feed, AnAliasedTensorIsSentToTheRanksOfEitherName) {
  inproc::run_ranks(2, [](const std::shared_ptr<Engine>& engine) {
    Layout layout = layouts::data_parallel();
    layout.rules = {{"tokens", {Stages{"pp", {"first"}}}}, {"labels", {Stages{"pp", {"last"}}}}};
    Feed feed(engine, Mesh::parse("pp=2"), layout, std::make_shared<Changing>(), {.batch = 1});
    const bool first = engine->info().rank == 0;
    const auto batch = feed.next();
    EXPECT_EQ(batch->tree().contains("tokens"), first);
    EXPECT_EQ(batch->tree().contains("labels"), !first);
    EXPECT_EQ(batch->tensor(first ? "tokens" : "labels").as<std::int64_t>()[1], 1);
  });
}

}  // namespace
}  // namespace levada
