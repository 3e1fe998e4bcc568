#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "levada/base/error.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/p2p/in_process_transport_testing.h"
#include "levada/feed/feed.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Samples of different lengths: sample g repeats the number g over its length. Several samples form a packed row.
class Lengths : public Source {
 public:
  explicit Lengths(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}

  std::optional<std::int64_t> size() const override { return std::ssize(lengths_); }
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), first);
    return gather(samples, memory);
  }
  std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count) override {
    std::vector<SampleSize> sizes;
    for (auto g = first; g < std::min(first + count, std::ssize(lengths_)); ++g) {
      const auto length = lengths_[static_cast<std::size_t>(g)];
      sizes.push_back({.tokens = length, .squares = length * length});
    }
    return sizes;
  }
  Tree gather(std::span<const std::int64_t> samples, Memory& memory) override {
    std::int64_t all = 0;
    for (const auto g : samples) all += lengths_[static_cast<std::size_t>(g)];
    auto row = memory.empty(dtypes::int64, {1, all});
    auto numbers = memory.empty(dtypes::int64, {std::ssize(samples)});
    std::ranges::copy(samples, numbers.mutable_as<std::int64_t>().begin());
    auto at = row.mutable_as<std::int64_t>().begin();
    for (const auto g : samples) at = std::fill_n(at, lengths_[static_cast<std::size_t>(g)], g);
    return Tree::dict({{"tokens", Tree(row)}, {"numbers", Tree(numbers)}});
  }
  void will_read(std::int64_t first, std::int64_t count) override {
    if (announced_ > 0) {
      EXPECT_EQ(first, announced_) << "each sample is announced once";
    }
    announced_ = first + count;
  }
  std::int64_t announced() const { return announced_; }
  Bytes cursor(std::int64_t next) const override {
    ByteWriter writer;
    writer.put(next);
    return std::move(writer).take();
  }
  std::string activity() const override { return "counting"; }
  ReadStats stats() const override { return {}; }

 private:
  std::vector<std::int64_t> lengths_;
  std::int64_t announced_ = 0;
};

std::vector<std::int64_t> random_lengths(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> lengths(count);
  for (auto& length : lengths) length = 1 + static_cast<std::int64_t>(random() % 1000);
  return lengths;
}

std::int64_t position(const Batch& batch) {
  ByteReader reader(batch.cursor);
  return reader.get<std::int64_t>();
}

/// The samples that each dp coordinate received, by step and micro-batch.
using Given = std::map<std::pair<std::int64_t, std::int64_t>, std::map<int, std::vector<std::int64_t>>>;

/// Returns the totals of samples [begin, end), as far as there are so many.
StepTotals totals_of(const std::vector<std::int64_t>& lengths, std::int64_t begin, std::int64_t end) {
  StepTotals totals{.labels = {}};
  for (auto g = begin; g < std::min(end, std::ssize(lengths)); ++g) {
    totals += {.samples = 1, .tokens = lengths[static_cast<std::size_t>(g)]};
  }
  return totals;
}

/// Runs a feed over all ranks. Checks that ranks that share a coordinate receive the same, and the totals of each step.
Given run(const Mesh& mesh, const FeedOptions& options, const std::vector<std::int64_t>& lengths) {
  Given given;
  std::mutex mutex;
  inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    Feed feed(engine, mesh, layouts::data_parallel(), std::make_shared<Lengths>(lengths), options);
    const int at = mesh.data_coordinate(engine->info().rank);
    std::int64_t micro_batches = 0, samples = 0;
    while (auto batch = feed.next()) {
      const auto numbers = batch->tensor("numbers").as<std::int64_t>();
      const std::vector<std::int64_t> mine(numbers.begin(), numbers.end());
      if (batch->micro + 1 < batch->num_micro) {
        EXPECT_TRUE(batch->cursor.empty());
      } else {
        const auto step_samples = options.batch * mesh.data_size();
        const auto end = options.first_sample + (batch->step + 1) * step_samples;
        EXPECT_EQ(position(*batch), std::min(end, std::ssize(lengths)));
        const auto totals = totals_of(lengths, end - step_samples, end);
        EXPECT_EQ(batch->totals.value_or(totals), totals);
        EXPECT_GE(batch->totals.has_value(), options.readers.kind == Readers::Kind::one);
      }
      EXPECT_EQ(batch->samples, std::ssize(mine));
      EXPECT_LE(batch->tensor("tokens").shape()[1], options.balance->max_tokens);
      ++micro_batches;
      samples += batch->samples;
      const std::lock_guard lock(mutex);
      const auto [place, is_new] = given[{batch->step, batch->micro}].emplace(at, mine);
      EXPECT_EQ(place->second, mine);
    }
    EXPECT_EQ(feed.stats().batches, micro_batches);
    EXPECT_EQ(feed.stats().samples, samples);
  });
  return given;
}

std::vector<std::int64_t> of_step(const Given& given, std::int64_t step) {
  std::vector<std::int64_t> all;
  for (const auto& [place, ranks] : given) {
    if (place.first != step) continue;
    for (const auto& [rank, numbers] : ranks) all.insert(all.end(), numbers.begin(), numbers.end());
  }
  std::ranges::sort(all);
  return all;
}

class BalancedFeeds : public ::testing::TestWithParam<const char*> {};

TEST_P(BalancedFeeds, DeliverEachSampleOfAStepOnceForAllReaders) {
  const Mesh mesh = Mesh::parse(GetParam());
  const auto lengths = random_lengths(500, 1);
  const std::int64_t step_samples = 16 * mesh.data_size();
  std::optional<Given> first;
  for (const char* readers : {"one", "all", "dp"}) {
    const FeedOptions options{.batch = 16, .balance = Balance{.max_tokens = 1500}, .readers = Readers::parse(readers)};
    const auto given = run(mesh, options, lengths);
    for (std::int64_t step = 0; step < std::ssize(lengths) / step_samples; ++step) {
      std::vector<std::int64_t> expected(static_cast<std::size_t>(step_samples));
      std::iota(expected.begin(), expected.end(), step * step_samples);
      EXPECT_EQ(of_step(given, step), expected);
    }
    EXPECT_EQ(given.rbegin()->first.first + 1, std::ssize(lengths) / step_samples) << "the rest fills no step";
    EXPECT_EQ(given, first.value_or(given)) << readers;
    first = given;
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, BalancedFeeds, ::testing::Values("dp=1", "dp=4", "dp=2,tp=2", "dp=2,pp=2"));

TEST(FeedBalance, ResumesAtAnyStepOnAnyMesh) {
  const auto lengths = random_lengths(960, 2);
  const Balance balance{.cost = SampleCost::parse("flops"), .max_tokens = 1200};
  const auto whole = run(Mesh::parse("dp=4"), {.batch = 12, .balance = balance}, lengths);
  std::mt19937 random(3);
  for (int turn = 0; turn < 20; ++turn) {
    const auto dp = std::vector{1, 2, 3, 4, 6}[random() % 5];
    const auto begin = static_cast<std::int64_t>(random() % 20);
    const FeedOptions options{.batch = 48 / dp, .balance = balance, .first_sample = begin * 48};
    const auto rest = run(Mesh(std::vector<Axis>{{"dp", dp}}), options, lengths);
    for (std::int64_t step = begin; step < 20; ++step) EXPECT_EQ(of_step(rest, step - begin), of_step(whole, step));
  }
}

TEST(FeedBalance, ASingleReaderAnnouncesTheNextStep) {
  for (const char* readers : {"one", "all"}) {
    inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
      const auto source = std::make_shared<Lengths>(random_lengths(64, 7));
      const FeedOptions options{
          .batch = 4, .balance = Balance{.max_tokens = 1500}, .steps = 3, .readers = Readers::parse(readers)};
      Feed feed(engine, Mesh::parse("dp=2"), layouts::data_parallel(), source, options);
      while (feed.next()) {
      }
      const bool reads_all = readers == std::string_view("one") && engine->info().rank == 0;
      EXPECT_EQ(source->announced(), reads_all ? 4 * 8 : 0) << readers;
    });
  }
}

/// Traffic between hosts in ten steps over three ranks, each on a host of its own.
struct Crossed {
  std::uint64_t payload = 0;   ///< bytes of tensors, of all ranks
  std::uint64_t overhead = 0;  ///< bytes of messages that are not tensors, of the ranks that do not read
  std::uint64_t messages = 0;  ///< large ones only
};

Crossed crossed_with(const std::optional<Balance>& balance) {
  Crossed crossed;
  p2p::test::LoopbackNetwork network(3, {.max_header_bytes = 8192});  // only batches are larger and have a body
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::uint64_t remote = 0;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto engine = p2p::make_engine(
          std::make_shared<p2p::test::LoopbackTransport>(network, rank, std::vector<int>{0, 1, 2}), {});
      Feed feed(engine, Mesh::parse("dp=3"), layouts::data_parallel(),
                std::make_shared<Lengths>(random_lengths(240, 9)), {.batch = 8, .balance = balance});
      while (feed.next()) {
      }
      const std::lock_guard lock(mutex);
      crossed.payload += feed.stats().bytes;
      remote += rank == 0 ? 0 : feed.stats().bytes;
    });
  }
  for (auto& thread : threads) thread.join();
  crossed.overhead = network.crossed_bytes_of_bodies() - remote;
  crossed.messages = network.crossed_bodies();
  return crossed;
}

TEST(FeedBalance, NeedsNoMoreAndNoLargerMessages) {
  const auto plain = crossed_with({});
  EXPECT_EQ(plain.messages, 2 * 10);
  for (const auto sizes : {PartSizes::equal, PartSizes::any}) {
    const auto balanced = crossed_with(Balance{.cost = SampleCost::parse("flops"), .sizes = sizes});
    EXPECT_EQ(balanced.messages, plain.messages);
    EXPECT_EQ(balanced.payload, plain.payload);
    // Messages are padded to a multiple of 8 bytes, so their size varies with the samples in them.
    constexpr std::uint64_t padding = 8;
    EXPECT_LT(balanced.overhead, plain.overhead + plain.messages * padding);
  }
}

TEST(FeedBalance, StepsAreCountedAndStoppedAsAWhole) {
  const auto lengths = random_lengths(1000, 4);
  const Mesh mesh = Mesh::parse("dp=2");
  for (const bool stops : {false, true}) {
    inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
      FeedOptions options{.batch = 8, .balance = Balance{.max_tokens = 1000}};
      if (!stops) options.steps = 3;
      Feed feed(engine, mesh, layouts::data_parallel(), std::make_shared<Lengths>(lengths), options);
      std::optional<Batch> last;
      while (auto batch = feed.next()) {
        if (stops && batch->step == 1 && batch->micro == 0) feed.request_stop();
        last = std::move(batch);
      }
      ASSERT_TRUE(last);
      EXPECT_EQ(last->micro + 1, last->num_micro);
      EXPECT_GT(last->num_micro, 1);
      if (!stops) {
        EXPECT_EQ(last->step, 2);
      }
      EXPECT_EQ(feed.end()->at.step, last->step + 1);
      EXPECT_EQ(feed.end()->cause, stops ? FeedEnd::Cause::stopped : FeedEnd::Cause::steps);
    });
  }
}

TEST(FeedBalance, AShortTailIsASeparateStep) {
  const auto given =
      run(Mesh::parse("dp=2"), {.batch = 4, .tail = Tail::short_, .balance = Balance{.max_tokens = 4000}},
          random_lengths(19, 5));
  EXPECT_EQ(of_step(given, 2), (std::vector<std::int64_t>{16, 17, 18}));
}

/// Expects that a feed in steps of 12 returns `steps` steps and then throws.
void expect_last_step_refused(FeedOptions options, std::shared_ptr<Source> source, std::int64_t steps,
                              const char* why) {
  options.batch = 4;
  options.tail = Tail::short_;
  options.balance = Balance{.cost = SampleCost::parse("flops"), .sizes = PartSizes::equal};
  inproc::run_ranks(3, [&](const std::shared_ptr<Engine>& engine) {
    std::int64_t given = 0;
    const auto feed_all = [&] {
      Feed feed(engine, Mesh::parse("dp=3"), layouts::data_parallel(), source, options);
      while (feed.next()) ++given;
    };
    EXPECT_THAT(feed_all, ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(why), HasSubstr("tail=\"drop\""))));
    EXPECT_EQ(given, steps);
  });
}

TEST(FeedBalance, RejectsALastStepOfFewerSamplesThanRanksAtTheStart) {
  const auto source = std::make_shared<Lengths>(random_lengths(38, 5));
  expect_last_step_refused({}, source, 0, "the last step would have only 2 of the 38 samples");
  expect_last_step_refused({.first_sample = 12}, source, 0, "2 of the 26 samples");
}

TEST(FeedBalance, FeedsTheStepsBeforeATooShortLastStep) {
  const auto given =
      run(Mesh::parse("dp=3"), {.batch = 4, .tail = Tail::short_, .balance = Balance{.max_tokens = 4000}, .steps = 3},
          random_lengths(38, 5));
  EXPECT_EQ(given.rbegin()->first.first, 2);
}

/// Does not know its size until it has ended.
class OfUnknownSize final : public Lengths {
 public:
  using Lengths::Lengths;
  std::optional<std::int64_t> size() const override { return std::nullopt; }
};

TEST(FeedBalance, NamesTheTailIfTheLastStepOfASourceOfUnknownSizeIsTooShort) {
  expect_last_step_refused({.readers = Readers::parse("one")}, std::make_shared<OfUnknownSize>(random_lengths(38, 5)),
                           3, "a step of 2 sample(s)");
}

/// Reads as Lengths does, and throws at a sample after the first three steps of 16.
class BreaksInStepThree final : public Lengths {
 public:
  using Lengths::Lengths;
  Tree gather(std::span<const std::int64_t> samples, Memory& memory) override {
    if (samples.front() >= 3 * 16) throw SourceError("the well is dry");
    return Lengths::gather(samples, memory);
  }
};

TEST(FeedBalance, ErrorsNameTheStepInsteadOfTheRound) {
  auto too_long = random_lengths(160, 8);
  too_long[3 * 16 + 5] = 1001;
  for (const char* readers : {"one", "all"}) {
    for (const bool breaks : {false, true}) {
      inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
        std::shared_ptr<Source> source = std::make_shared<Lengths>(too_long);
        if (breaks) source = std::make_shared<BreaksInStepThree>(random_lengths(160, 8));
        Feed feed(engine, Mesh::parse("dp=2"), layouts::data_parallel(), source,
                  {.batch = 8, .balance = Balance{.max_tokens = 1000}, .readers = Readers::parse(readers)});
        std::int64_t micro_batches = 0;
        const auto read_all = [&] {
          while (feed.next()) ++micro_batches;
        };
        const auto* why =
            breaks ? "could not read step 3: the well is dry" : "could not read step 3: the step of samples 48 to 63";
        EXPECT_THAT(read_all, ThrowsMessage<Error>(HasSubstr(why))) << readers;
        EXPECT_EQ(feed.end()->at.step, 3);
        EXPECT_GT(micro_batches, 6) << "steps have several";
      });
    }
  }
}

TEST(FeedBalance, LeavingWithinAStepIsAnErrorThatNamesStepAndMicroBatch) {
  for (const char* reason : {"", "ValueError: loss is NaN"}) {
    inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
      Feed feed(engine, Mesh::parse("dp=2"), layouts::data_parallel(),
                std::make_shared<Lengths>(random_lengths(160, 8)),
                {.batch = 8, .balance = Balance{.max_tokens = 1000}, .depth = 1});
      if (engine->info().rank == 1) {
        std::optional<Batch> batch;
        do batch = feed.next();
        while (batch->step < 3);
        feed.close(reason);
        EXPECT_EQ(feed.end()->at.step, 3);
        return;
      }
      const auto read_all = [&] {
        while (feed.next()) {
        }
      };
      EXPECT_THAT(read_all,
                  ThrowsMessage<PeerLost>(AllOf(HasSubstr("rank 1 left the feed at step 3, micro-batch 1"),
                                                HasSubstr("rank 0 is at step 3, micro-batch "), HasSubstr(reason))));
      EXPECT_EQ(feed.end()->at.step, 3);
    });
  }
}

void expect_refused(const FeedOptions& options, const std::vector<std::int64_t>& lengths, const char* kind,
                    const char* why) {
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    EXPECT_THAT(
        [&] {
          Feed feed(engine, Mesh::parse("dp=2"), layouts::data_parallel(), std::make_shared<Lengths>(lengths), options);
          while (feed.next()) {
          }
        },
        ThrowsMessage<Error>(HasSubstr(why)))
        << kind;
  });
}

TEST(FeedBalance, EveryRankRejectsUnbalanceableFeeds) {
  const auto lengths = random_lengths(64, 6);
  const Balance balance{.max_tokens = 1000};
  expect_refused({.batch = 4, .divide = Divide::split, .balance = balance}, lengths, "split", "dealt");
  expect_refused({.batch = 4, .tail = Tail::pad, .balance = balance}, lengths, "pad", "not padded");
  expect_refused({.batch = 4, .balance = Balance{.max_tokens = 100}}, lengths, "too long", "sample");
}

TEST(FeedBalance, RejectsDifferentBalancesAcrossRanks) {
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    const Balance balance{.max_tokens = 1000 + engine->info().rank};
    EXPECT_THAT(([&] {
                  const Feed feed(engine, Mesh::parse("dp=2"), layouts::data_parallel(),
                                  std::make_shared<Lengths>(random_lengths(64, 6)), {.balance = balance});
                }),
                ThrowsMessage<InvalidArgument>(HasSubstr("balance")));
    const Balance labeled{.label = engine->info().rank == 0 ? "pad_to 1" : "pad_to 8"};
    EXPECT_THAT(([&] {
                  const Feed feed(engine, Mesh::parse("dp=2"), layouts::data_parallel(),
                                  std::make_shared<Lengths>(random_lengths(64, 6)), {.balance = labeled});
                }),
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("balance: rank 1 has"), HasSubstr("pad_to 8'"),
                                                     HasSubstr("pass the same on all ranks"))));
  });
}

TEST(FeedBalance, ReadersThatDivideAStepDifferentlyEndTheFeedWithAnErrorOnEveryRank) {
  auto lengths = random_lengths(160, 6);
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    auto mine = lengths;
    if (engine->info().rank == 1) std::ranges::reverse(std::span(mine).subspan(32, 16));
    Feed feed(engine, Mesh::parse("dp=2"), layouts::data_parallel(), std::make_shared<Lengths>(mine),
              {.batch = 8, .balance = Balance{}, .readers = Readers::parse("all")});
    const auto read_all = [&] {
      while (feed.next()) {
      }
    };
    EXPECT_THAT(read_all, ThrowsMessage<InvalidArgument>(HasSubstr("divides the samples of this step")));
    EXPECT_GE(feed.end()->at.step, 2);
  });
}

TEST(FeedBalance, ReadersOfDifferentContentEndTheFeedWithAnErrorOnEveryRank) {
  struct Other final : Lengths {
    using Lengths::Lengths;
    Tree gather(std::span<const std::int64_t> samples, Memory& memory) override {
      auto row = Lengths::gather(samples, memory);
      auto tokens = row.tensor("tokens");
      for (auto& token : tokens.mutable_as<std::int64_t>()) token += token / 16 == 6 ? 1000 : 0;
      return row;
    }
  };
  const auto lengths = random_lengths(160, 6);
  inproc::run_ranks(4, [&](const std::shared_ptr<Engine>& engine) {
    std::shared_ptr<Source> source = std::make_shared<Lengths>(lengths);
    if (engine->info().rank == 3) source = std::make_shared<Other>(lengths);
    Feed feed(engine, Mesh::parse("dp=2,tp=2"), layouts::data_parallel(), source,
              {.batch = 8, .balance = Balance{.max_tokens = 3000}, .readers = Readers::parse("all")});
    const auto read_all = [&] {
      while (feed.next()) {
      }
    };
    EXPECT_THAT(read_all, ThrowsMessage<SourceError>(AllOf(HasSubstr("of data-parallel rank 1 differs"),
                                                           HasSubstr("between rank 2 and rank 3, in tokens;"))));
    EXPECT_EQ(feed.end()->at.step, 6);
  });
}

}  // namespace
}  // namespace levada
