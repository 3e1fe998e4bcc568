// Feeds whose readers read inside next(): a stop loses no sample, and an interrupted wait repeats none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <thread>

#include "levada/engine/inproc/inproc.h"
#include "levada/feed/feed.h"
#include "levada/feed/source_testing.h"

namespace levada {
namespace {

using testing::Numbered;
using testing::NumberedOptions;

/// Checks that every sample that a reader has read was delivered, although a rank asks for a stop.
void expect_all_delivered(const char* readers, int asking, bool asks_while_reading) {
  std::atomic<bool> is_reading{false};
  inproc::run_ranks(4, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    std::atomic<int> reads{0};
    Feed* asked = nullptr;
    const auto count = [&](std::int64_t) {
      ++reads;
      if (!asks_while_reading || rank != 0 || reads < 6 || is_reading.exchange(true)) return;
      asked->request_stop();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the feed's thread may receive the request
    };
    Feed feed(engine, Mesh::parse("dp=2,tp=2"), layouts::gpt(),
              std::make_shared<Numbered>(NumberedOptions{.samples = 1000, .before = count}),
              {.batch = 1, .readers = Readers::parse(readers), .ahead = false});
    asked = &feed;
    int steps = 0;
    while (feed.next()) {
      if (++steps == 3 && rank == asking && !asks_while_reading) feed.request_stop();
    }
    EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::stopped);
    EXPECT_EQ(feed.end()->at.step, steps);
    const int a_round = !feed.is_reader() ? 0 : std::string_view(readers) == "one" ? 2 : 1;
    // In the first round all readers compare the first unit, and rank 2 reads it only for that.
    const int compared = std::string_view(readers) == "dp" && rank == 2 ? 1 : 0;
    EXPECT_EQ(reads, steps * a_round + compared) << readers << ", rank " << rank << ", asked by " << asking;
  });
}

TEST(InlineFeeds, AStopLosesNoSample) {
  for (const char* readers : {"one", "dp", "all"}) {
    for (int trial = 0; trial < 12; ++trial) expect_all_delivered(readers, trial % 4, false);
    for (int trial = 0; trial < 4; ++trial) expect_all_delivered(readers, 0, true);
  }
}

/// Thrown by a caller's function while the caller waits.
struct Signal {};

/// Numbered samples on the heap, each of which can be read once.
class Once : public Source {
 public:
  std::optional<std::int64_t> size() const override { return std::nullopt; }
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory&) override {
    if (first != next_) throw SourceError("each sample is read once, in order");
    next_ += count;
    HeapMemory heap;
    return Numbered::batch(first, count, sequence, heap);
  }
  Bytes cursor(std::int64_t) const override { return {}; }
  std::string activity() const override { return "counting"; }
  ReadStats stats() const override { return {}; }

  static constexpr std::int64_t sequence = 4096;

 private:
  std::int64_t next_ = 0;
};

/// Samples that are read by number, each with `sequence` tokens.
class ByNumber : public Once {
 public:
  std::optional<std::int64_t> size() const override { return 64; }
  std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count) override {
    return std::vector<SampleSize>(static_cast<std::size_t>(std::clamp<std::int64_t>(64 - first, 0, count)),
                                   {.tokens = sequence, .squares = sequence * sequence});
  }
  Tree gather(std::span<const std::int64_t> samples, Memory& memory) override {
    Tensor row = memory.empty(dtypes::int64, {1, std::ssize(samples) * sequence});
    std::ranges::fill(row.mutable_as<std::int64_t>(), samples.front());
    return Tree::dict({{"tokens", Tree(row)}});
  }
};

/// Runs a feed of two ranks, the second of which receives nothing until three waits of the first for memory have been
/// interrupted. Calls `check` with each batch of the first.
void interrupt(const std::shared_ptr<Source>& source, const FeedOptions& feed_options, std::size_t memory_bytes,
               const std::function<void(const Batch&, int rank)>& check) {
  std::latch interrupted(1);
  inproc::run_ranks(2,
                    [&](const std::shared_ptr<Engine>& engine) {
                      const int rank = engine->info().rank;
                      int left = rank == 0 ? 3 : 0;
                      FeedOptions options = feed_options;
                      options.depth = 64;
                      options.ahead = false;
                      bool is_constructed = false;
                      options.poll = [&] {
                        if (left > 0 && is_constructed) throw Signal();
                      };
                      Feed feed(engine, Mesh::parse("dp=2"), layouts::data_parallel(), source, options);
                      is_constructed = true;
                      if (rank == 1) interrupted.wait();
                      while (true) {
                        try {
                          const auto batch = feed.next();
                          if (!batch) break;
                          check(*batch, rank);
                        } catch (const Signal&) {
                          if (--left == 0) interrupted.count_down();
                        }
                      }
                      EXPECT_EQ(left, 0);
                    },
                    {.memory_bytes = memory_bytes});
}

TEST(InlineFeeds, AnInterruptedWaitForMemoryRepeatsAndLosesNoSample) {
  interrupt(std::make_shared<Once>(), {.batch = 1, .steps = 40}, 3 << 20, [](const Batch& batch, int rank) {
    HeapMemory heap;
    EXPECT_EQ(batch.tree(), Numbered::batch(2 * batch.step + rank, 1, Once::sequence, heap));
  });
}

TEST(InlineFeeds, AnInterruptedWaitForMemoryCountsAMicroBatchOnce) {
  const Balance balance{.max_tokens = 2 * Once::sequence};
  interrupt(std::make_shared<ByNumber>(), {.batch = 8, .balance = balance}, 1 << 19, [](const Batch& batch, int) {
    EXPECT_EQ(batch.num_micro, 4);
    EXPECT_EQ(batch.totals->samples, 4 * (batch.micro + 1));
    EXPECT_EQ(batch.totals->tokens, 4 * (batch.micro + 1) * Once::sequence);
  });
}

}  // namespace
}  // namespace levada
