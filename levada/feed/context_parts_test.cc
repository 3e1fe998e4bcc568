#include "levada/feed/context_parts.h"

#include <gmock/gmock.h>

#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/inproc/inproc.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t max_document = 2000;

/// Documents of different lengths: position j of document g is max_document * g + j.
class Documents : public Source {
 public:
  Documents(std::vector<std::int64_t> lengths, std::int64_t multiple)
      : lengths_(std::move(lengths)), multiple_(multiple) {}

  std::optional<std::int64_t> size() const override { return std::ssize(lengths_); }
  std::optional<Tree> read(std::int64_t, std::int64_t, Memory&) override { throw Unsupported("rows are gathered"); }
  std::int64_t segment_multiple() const override { return multiple_; }
  std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count) override {
    std::vector<SampleSize> sizes;
    for (auto g = first; g < std::min(first + count, std::ssize(lengths_)); ++g) {
      const auto length = length_of(g);
      sizes.push_back({.tokens = length, .squares = length * length});
    }
    return sizes;
  }
  Tree gather(std::span<const std::int64_t> samples, Memory& memory) override {
    std::vector<std::int64_t> ends{0};
    for (const auto g : samples) ends.push_back(ends.back() + length_of(g));
    auto tokens = memory.empty(dtypes::int64, {1, ends.back()});
    auto bounds = memory.empty(dtypes::int64, {1, std::ssize(ends)});
    std::ranges::copy(ends, bounds.mutable_as<std::int64_t>().begin());
    auto at = tokens.mutable_as<std::int64_t>().begin();
    for (const auto g : samples) {
      for (std::int64_t j = 0; j < length_of(g); ++j) *at++ = max_document * g + j;
    }
    return Tree::dict({{"tokens", Tree(tokens)}, {"cu_seqlens", Tree(bounds)}, {"name", Tree("row")}});
  }
  Bytes cursor(std::int64_t next) const override {
    ByteWriter writer;
    writer.put(next);
    return std::move(writer).take();
  }
  std::string activity() const override { return "counting"; }
  ReadStats stats() const override { return {}; }

 private:
  std::int64_t length_of(std::int64_t g) const { return lengths_[static_cast<std::size_t>(g)]; }

  std::vector<std::int64_t> lengths_;
  std::int64_t multiple_;
};

/// Mostly short documents and some long ones, in multiples of 16.
std::vector<std::int64_t> document_lengths(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> lengths(count);
  for (auto& length : lengths) {
    const auto chunks = random() % 10 == 0 ? 20 + random() % 60 : 1 + random() % 12;
    length = 16 * static_cast<std::int64_t>(chunks);
  }
  return lengths;
}

const Layout text_layout{.name = "text",
                         .rules = {{"tokens", {Shard{"dp", 0}, Zigzag{"cp", 1}, Replicate{"tp"}}}},
                         .otherwise = {},
                         .stages = {}};

FeedOptions block_options(std::int64_t max_tokens, int max_cp) {
  return {.batch = 8,
          .balance = Balance{
              .cost = SampleCost::parse("flops"), .max_tokens = max_tokens, .wait = Wait::micro, .max_cp = max_cp}};
}

/// A micro-batch as one rank received it.
struct BlockPart {
  std::vector<std::int64_t> tokens, ends;
  int size = 1, index = 0;
  bool operator==(const BlockPart&) const = default;
};

/// By step and micro-batch, then by dp x cp rank.
using PartsByRank = std::map<std::pair<std::int64_t, std::int64_t>, std::map<int, BlockPart>>;

PartsByRank run_blocks(const Mesh& mesh, const FeedOptions& options, const std::vector<std::int64_t>& lengths) {
  PartsByRank parts;
  std::mutex mutex;
  inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    Feed feed(engine, mesh, text_layout, std::make_shared<Documents>(lengths, 16), options);
    const int rank = engine->info().rank;
    const int slot = mesh.data_coordinate(rank) * mesh.axis_size("cp") + mesh.coordinate(rank, "cp");
    while (auto batch = feed.next()) {
      const auto tokens = batch->tensor("tokens").as<std::int64_t>();
      const auto ends = batch->tensor("cu_seqlens").as<std::int64_t>();
      const BlockPart part{{tokens.begin(), tokens.end()}, {ends.begin(), ends.end()}, batch->cp_size, batch->cp_rank};
      EXPECT_LE(std::ssize(part.tokens), options.balance->max_tokens);
      EXPECT_EQ(batch->samples, std::ssize(part.ends) - 1);
      if (batch->micro + 1 == batch->num_micro && options.readers.kind == Readers::Kind::one) {
        const auto begin = batch->step * options.batch * mesh.data_size();
        const auto end = begin + options.batch * mesh.data_size();
        StepTotals totals{.samples = end - begin, .labels = {}};
        totals.tokens = std::accumulate(lengths.begin() + begin, lengths.begin() + end, std::int64_t{0});
        EXPECT_EQ(batch->totals, totals);
      }
      const std::lock_guard lock(mutex);
      const auto [place, is_new] = parts[{batch->step, batch->micro}].emplace(slot, part);
      EXPECT_EQ(place->second, part) << "ranks of one dp x cp coordinate receive the same";
    }
  });
  return parts;
}

/// Puts the parts of a block together, segment by segment.
std::vector<std::int64_t> whole_row(const std::map<int, BlockPart>& parts, int first) {
  const BlockPart& lead = parts.at(first);
  std::vector<std::int64_t> row(static_cast<std::size_t>(lead.ends.back()), -1);
  for (int index = 0; index < lead.size; ++index) {
    const BlockPart& part = parts.at(first + index);
    EXPECT_EQ(part.size, lead.size);
    EXPECT_EQ(part.index, index);
    EXPECT_EQ(part.ends, lead.ends);
    auto at = part.tokens.begin();
    for (std::size_t segment = 0; segment + 1 < lead.ends.size(); ++segment) {
      const auto length = lead.ends[segment + 1] - lead.ends[segment];
      const auto chunks = lead.size == 1 ? 1 : 2 * lead.size;
      for (const int number : {index, 2 * lead.size - 1 - index}) {
        if (lead.size == 1 && number > 0) continue;
        const auto to = row.begin() + lead.ends[segment] + number * (length / chunks);
        std::copy_n(at, length / chunks, to);
        at += length / chunks;
      }
    }
    EXPECT_EQ(at, part.tokens.end());
  }
  return row;
}

class ContextFeeds : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(ContextFeeds, DeliverEachPositionOfAStepToOneRankInZigzagOrder) {
  const auto [mesh_text, max_cp] = GetParam();
  const Mesh mesh = Mesh::parse(mesh_text);
  const int slots = mesh.data_size() * mesh.axis_size("cp");
  const auto lengths = document_lengths(100, 3);
  const std::int64_t step_samples = 8 * mesh.data_size();
  std::optional<PartsByRank> first;
  std::set<int> sizes;
  for (const char* readers : {"one", "all"}) {
    auto options = block_options(1280 / max_cp * 2, max_cp);
    options.readers = Readers::parse(readers);
    const auto parts = run_blocks(mesh, options, lengths);
    for (const auto& [place, by_slot] : parts) ASSERT_EQ(std::ssize(by_slot), slots);
    for (std::int64_t step = 0; step < std::ssize(lengths) / step_samples; ++step) {
      std::multiset<std::int64_t> samples;
      for (const auto& [place, by_slot] : parts) {
        if (place.first != step) continue;
        for (int slot = 0; slot < slots; slot += by_slot.at(slot).size) {
          ASSERT_EQ(slot % by_slot.at(slot).size, 0);
          sizes.insert(by_slot.at(slot).size);
          const auto row = whole_row(by_slot, slot);
          const auto& ends = by_slot.at(slot).ends;
          for (std::size_t segment = 0; segment + 1 < ends.size(); ++segment) {
            const auto sample = row[static_cast<std::size_t>(ends[segment])] / max_document;
            samples.insert(sample);
            ASSERT_EQ(ends[segment + 1] - ends[segment], lengths[static_cast<std::size_t>(sample)]);
            for (auto at = ends[segment]; at < ends[segment + 1]; ++at) {
              ASSERT_EQ(row[static_cast<std::size_t>(at)], max_document * sample + at - ends[segment]);
            }
          }
        }
      }
      ASSERT_EQ(std::ssize(samples), step_samples);
      ASSERT_EQ(*samples.begin(), step * step_samples);
      ASSERT_EQ(*samples.rbegin(), (step + 1) * step_samples - 1);
      ASSERT_EQ(std::ssize(std::set(samples.begin(), samples.end())), step_samples);
    }
    if (first) {
      EXPECT_EQ(parts, *first) << readers;
    }
    first = parts;
  }
  EXPECT_GT(sizes.size(), 1u) << "blocks of several sizes";
}

INSTANTIATE_TEST_SUITE_P(Meshes, ContextFeeds,
                         ::testing::Values(std::tuple{"dp=4", 4}, std::tuple{"dp=2,cp=2", 2},
                                           std::tuple{"dp=2,cp=2", 4}, std::tuple{"cp=4,dp=1", 4},
                                           std::tuple{"dp=2,cp=2,tp=2", 4}, std::tuple{"pp=2,dp=2,cp=2", 4},
                                           std::tuple{"dp=8", 8}, std::tuple{"dp_replicate=2,dp_shard=2,cp=2", 8}));

std::string feed_refusal_of(const Mesh& mesh, const Layout& layout, const FeedOptions& options,
                            std::int64_t multiple = 16) {
  std::string refusal;
  std::mutex mutex;
  inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    std::string mine = "no InvalidArgument";
    try {
      Feed feed(engine, mesh, layout, std::make_shared<Documents>(document_lengths(64, 5), multiple), options);
      while (feed.next()) continue;
    } catch (const InvalidArgument& error) {
      mine = error.what();
    }
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(refusal.empty() || refusal == mine) << "all ranks see the same";
    refusal = mine;
  });
  return refusal;
}

TEST(ContextFeedErrors, NameTheOptionOnAllRanks) {
  const auto mesh = Mesh::parse("dp=2,cp=2");
  EXPECT_THAT(feed_refusal_of(mesh, text_layout, block_options(640, 8)),
              HasSubstr("a power of two that divides the 4 dp x cp ranks, so at most 4, got 8"));
  EXPECT_THAT(feed_refusal_of(mesh, text_layout, block_options(640, 3)),
              HasSubstr("max_cp must be a power of two, got 3"));
  EXPECT_THAT(feed_refusal_of(mesh, text_layout, block_options(0, 4)),
              HasSubstr("max_cp=4 gives each sequence its own number"));
  EXPECT_THAT(feed_refusal_of(mesh, text_layout, block_options(640, 4), 4),
              HasSubstr("choose a multiple of 8 (pad_to=, --pad-to)"));
  auto options = block_options(640, 4);
  options.readers = Readers::parse("dp");
  EXPECT_THAT(feed_refusal_of(mesh, text_layout, options), HasSubstr("readers must be one, host or all, got dp"));
  const Layout whole{.name = "whole", .rules = {{"tokens", {Shard{"dp", 0}}}}, .otherwise = {}, .stages = {}};
  EXPECT_THAT(feed_refusal_of(mesh, whole, block_options(640, 4)),
              HasSubstr("layout whole has none; add zigzag(cp,1)"));
  const Layout shard{.name = "shard", .rules = {{"tokens", {Shard{"cp", 1}}}}, .otherwise = {}, .stages = {}};
  EXPECT_THAT(feed_refusal_of(mesh, shard, block_options(640, 4)),
              HasSubstr("the layout has shard(cp,1); use zigzag(cp,dim)"));
  const Layout twice{
      .name = "twice", .rules = {{"tokens", {Shard{"tp", 1}, Zigzag{"cp", 1}}}}, .otherwise = {}, .stages = {}};
  EXPECT_THAT(feed_refusal_of(Mesh::parse("cp=2,tp=2"), twice, block_options(640, 2)),
              HasSubstr("max_cp cuts dim 1 by zigzag(cp,1), so shard(tp,1) cannot cut it as well"));
  options = block_options(640, 2);
  options.batch = 31;
  options.first_sample = 1;
  options.tail = Tail::short_;
  EXPECT_THAT(feed_refusal_of(mesh, text_layout, options),
              HasSubstr("would have only 1 of the 63 samples, but each of the 2 blocks of 2 ranks needs one"));
  EXPECT_THAT(feed_refusal_of(mesh, text_layout, block_options(64, 4)),
              HasSubstr("tokens, but 4 ranks of at most 64 tokens each hold 256"));
}

TEST(ContextPart, DoesNotCutOtherFields) {
  HeapMemory memory;
  const auto row =
      Tree::dict({{"tokens", Tree(Tensor::of<std::int64_t>({1, 12}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}))},
                  {"cu_seqlens", Tree(Tensor::of<std::int32_t>({1, 3}, {0, 4, 12}))},
                  {"names", Tree::list({Tree("a"), Tree("b")})}});
  const auto part =
      context_part(row, {.rules = {{"tokens", {Zigzag{"cp", 1}}}}, .otherwise = {}, .stages = {}}, 2, 0, memory);
  EXPECT_THAT(part.tensor("tokens").as<std::int64_t>(), ElementsAre(0, 3, 4, 5, 10, 11));
  EXPECT_THAT(part.tensor("cu_seqlens").as<std::int32_t>(), ElementsAre(0, 4, 12));
  EXPECT_EQ(std::get<std::string>(part.at("names[1]").leaf()), "b");
}

TEST(ContextPart, RequiresSegmentsThatItCanCut) {
  HeapMemory memory;
  const Layout cuts{.rules = {{"tokens", {Zigzag{"cp", 1}}}}, .otherwise = {}, .stages = {}};
  const auto tokens = Tree(Tensor::of<std::int64_t>({1, 8}, {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_THROW(context_part(Tree::dict({{"tokens", tokens}}), cuts, 2, 0, memory), InvalidArgument);
  const auto odd = Tree::dict({{"tokens", tokens}, {"cu_seqlens", Tree(Tensor::of<std::int32_t>({1, 3}, {0, 2, 8}))}});
  EXPECT_THROW(context_part(odd, cuts, 2, 0, memory), InvalidArgument);
}

}  // namespace
}  // namespace levada
