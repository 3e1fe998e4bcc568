#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "levada/base/error.h"
#include "levada/base/fault_testing.h"
#include "levada/corpus/corpus_testing.h"
#include "levada/corpus/cursor.h"
#include "levada/order/mix.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

/// Returns a text of `sequences` sequences of four characters: the source's letter, then a number.
std::string numbered(char source, int sequences) {
  std::string text;
  for (int i = 0; i < sequences; ++i) text += fmt::format("{}{}{}.", source, char('0' + i / 64), char('0' + i % 64));
  return text;
}

struct Sample {
  char source;
  int number;
  bool operator==(const Sample&) const = default;
};

Sample sample_of(Corpus& corpus, std::int64_t g) {
  HeapMemory memory;
  const auto batch = corpus.read(g, 1, memory).value();
  const auto tokens = batch.tensor("tokens").as<std::int64_t>();
  return {static_cast<char>(tokens[0]), static_cast<int>(tokens[1] - '0') * 64 + static_cast<int>(tokens[2] - '0')};
}

/// Three sources in a folder, and their mix.
class CorpusMixing : public ::testing::Test {
 protected:
  CorpusMixing() {
    dir_.write("a.txt", numbered('a', 100));
    dir_.write("b1.txt", numbered('b', 40));
    dir_.write("c.txt", numbered('c', 300));
  }

  Corpus open(const std::string& json, CorpusOptions options = {}) const {
    options.sequence = 4;
    options.tokenizer = byte_tokenizer();
    options.cache_dir = scratch_cache();
    return Corpus::open({dir_.write("mix.json", json)}, options);
  }

  ScratchDir dir_;
  const std::string three_ =
      R"({"sources": [{"path": "a.txt", "weight": 1}, {"path": "b*.txt", "weight": 2, "name": "b"},
                                             {"path": ["c.txt"], "weight": 5, "max_samples": 1000}]})";
};

TEST_F(CorpusMixing, EvaluationYieldsEachSampleOnceRegardlessOfWeights) {
  for (const auto shuffle : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(7)}) {
    auto corpus = open(three_, {.shuffle_seed = shuffle, .each_once = true});
    ASSERT_EQ(corpus.size(), 100 + 40 + 300);
    std::map<std::pair<char, int>, int> times;
    for (std::int64_t g = 0; g < *corpus.size(); ++g) {
      const auto sample = sample_of(corpus, g);
      ++times[{sample.source, sample.number}];
    }
    EXPECT_EQ(times.size(), 440U);
    EXPECT_EQ(corpus.shares(0, 440)[2].samples, 300);
  }
  EXPECT_THAT(fault_of([&] { open(three_, {.epochs = 2, .each_once = true}); }), HasSubstr("in one epoch, not in 2"));
}

TEST_F(CorpusMixing, EachSourceHasItsShareOfEveryBlock) {
  auto corpus = open(three_, {.epochs = 0});
  EXPECT_EQ(corpus.sequences(), 100 + 40 + 300);
  std::map<char, int> counts;
  for (std::int64_t g = 0; g < Mix::block; ++g) ++counts[sample_of(corpus, g).source];
  // c reaches its cap of 1000 in the first block; a and b share the rest.
  EXPECT_EQ(counts, (std::map<char, int>{{'a', 1032}, {'b', 2064}, {'c', 1000}}));
}

TEST_F(CorpusMixing, EachSourceHasSeparateEpochs) {
  for (const auto seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(3)}) {
    auto corpus = open(three_, {.shuffle_seed = seed, .epochs = 0});
    std::map<char, std::vector<int>> given;
    for (std::int64_t g = 0; g < Mix::block; ++g) {
      const auto sample = sample_of(corpus, g);
      given[sample.source].push_back(sample.number);
    }
    for (const auto& [source, size] : {std::pair{'a', 100}, std::pair{'b', 40}, std::pair{'c', 300}}) {
      const auto& numbers = given[source];
      std::vector<int> before;
      for (std::size_t begin = 0; begin + static_cast<std::size_t>(size) <= numbers.size();
           begin += static_cast<std::size_t>(size)) {
        std::vector epoch(numbers.begin() + static_cast<std::ptrdiff_t>(begin),
                          numbers.begin() + static_cast<std::ptrdiff_t>(begin) + size);
        EXPECT_EQ(epoch == before, !seed && !before.empty());
        before = epoch;
        std::ranges::sort(epoch);
        for (int i = 0; i < size; ++i) ASSERT_EQ(epoch[static_cast<std::size_t>(i)], i) << source;
      }
    }
  }
}

TEST_F(CorpusMixing, ReportsTheShareOfEachSource) {
  auto corpus = open(three_, {.epochs = 0});
  std::map<std::string, std::int64_t> counts;
  for (std::int64_t g = 1000; g < 5000; ++g) ++counts[std::string(1, sample_of(corpus, g).source)];
  const auto shares = corpus.shares(1000, 5000);
  ASSERT_EQ(shares.size(), 3);
  EXPECT_EQ(shares[0].name, "a.txt");
  EXPECT_EQ(shares[1].name, "b");
  for (const auto& share : shares) {
    const auto letter = share.name.substr(0, 1);
    EXPECT_EQ(share.samples, counts[letter]);
    EXPECT_EQ(share.tokens, 4 * counts[letter]);
    EXPECT_NEAR(share.share, static_cast<double>(counts[letter]) / 4000, 1e-12);
  }
  const auto alone = open(R"({"sources": [{"path": "a.txt", "weight": 3}]})");
  EXPECT_EQ(alone.shares(5, 15)[0].samples, 10);
  EXPECT_EQ(alone.shares(95, 1000)[0].samples, 5);
  EXPECT_EQ(alone.shares(200, 300)[0].samples, 0);
}

TEST_F(CorpusMixing, EndsAfterItsEpochsOrWhenAllCapsAreReached) {
  EXPECT_EQ(open(three_, {.epochs = 3}).size(), 3 * 440);
  EXPECT_EQ(open(three_, {.epochs = 0}).size(), std::nullopt);
  const auto* capped = R"({"sources": [{"path": "a.txt", "weight": 1, "max_samples": 30},
                                       {"path": "b1.txt", "weight": 1, "max_tokens": 50}]})";
  EXPECT_EQ(open(capped).sequences(), 30 + 12);
  EXPECT_EQ(open(capped, {.epochs = 0}).size(), 42);
  EXPECT_EQ(open(capped, {.epochs = 5}).size(), 42);
  HeapMemory memory;
  auto corpus = open(capped);
  EXPECT_TRUE(corpus.read(40, 2, memory));
  EXPECT_FALSE(corpus.read(42, 1, memory));
}

TEST_F(CorpusMixing, DividesTokensInsteadOfSamplesIfRequested) {
  dir_.write("short.jsonl", "{\"text\":\"abc\"}\n");
  dir_.write("long.jsonl", "{\"text\":\"abcdefghijkl\"}\n");
  const auto path = dir_.write("mix.json", R"({"by": "tokens", "sources": [{"path": "short.jsonl", "weight": 1},
                                                                          {"path": "long.jsonl", "weight": 1}]})");
  auto corpus = Corpus::open({path}, {.sequence = 12,
                                      .epochs = 0,
                                      .packing = Packing::best_fit,
                                      .tokenizer = byte_tokenizer(),
                                      .cache_dir = scratch_cache()});
  const auto shares = corpus.shares(0, Mix::block);
  // A sample of short.jsonl holds 3 tokens, one of long.jsonl 12: equal shares take four times as many of the first.
  EXPECT_NEAR(static_cast<double>(shares[0].samples), 3276.8, 1.5);
  EXPECT_EQ(shares[0].samples + shares[1].samples, Mix::block);
  EXPECT_NEAR(shares[0].share, 0.5, 1e-3);
}

TEST_F(CorpusMixing, AFolderAndAPatternExpandToTheirFiles) {
  CorpusOptions options{.sequence = 4, .tokenizer = byte_tokenizer(), .cache_dir = scratch_cache()};
  auto folder = Corpus::open({dir_.path()}, options);
  auto pattern = Corpus::open({dir_.file("?*.txt")}, options);
  auto named = Corpus::open({dir_.file("a.txt"), dir_.file("b1.txt"), dir_.file("c.txt")}, options);
  EXPECT_EQ(folder.digest(), named.digest());
  EXPECT_EQ(pattern.resume(named.cursor(5)), 5);
  HeapMemory memory;
  EXPECT_EQ(folder.read(0, 400, memory), named.read(0, 400, memory));
}

TEST_F(CorpusMixing, RejectsACursorOfAnotherMix) {
  const auto cursor = open(three_, {.shuffle_seed = 1}).cursor(9);
  EXPECT_EQ(open(three_, {.shuffle_seed = 1}).resume(cursor), 9);
  const auto refusal = [&](std::string json, const std::string& what, const std::string& by) {
    json.replace(json.find(what), what.size(), by);
    return fault_of([&] { open(json, {.shuffle_seed = 1}).resume(cursor); });
  };
  EXPECT_THAT(
      refusal(three_, "5,", "6,"),
      HasSubstr("the weights of the sources are 1 2 6 by samples (mix 3), but the cursor has 1 2 5 by samples (mix 3): "
                "use those, or apply the new ones from its sample 9 on (--resume-weights, resume_weights=True)"));
  EXPECT_THAT(refusal(three_, "1000", "999"), HasSubstr("caps is none none 999, there none none 1000"));
  EXPECT_THAT(refusal(three_, "{\"sources", "{\"by\": \"tokens\", \"sources"),
              HasSubstr("the weights of the sources are 1 2 5 by tokens"));
  EXPECT_THAT(refusal(three_, "a.txt", "b1.txt"), HasSubstr("corpus is"));
  EXPECT_THAT(refusal(three_, "\"a.txt\"", "[\"a.txt\", \"b1.txt\"]"), HasSubstr("corpus is"));
}

TEST_F(CorpusMixing, ContinuesWithOtherWeightsIfRequested) {
  const auto with = [&](const std::string& weights, bool resume_weights = true) {
    auto json = three_;
    json.replace(json.find("1000"), 4, "5000");
    json.replace(json.find("5,"), 1, weights);
    return open(json, {.shuffle_seed = 1, .epochs = 0, .resume_weights = resume_weights});
  };
  const auto samples = [&](Corpus& corpus, std::int64_t first, std::int64_t count) {
    std::vector<Sample> all;
    for (auto g = first; g < first + count; ++g) all.push_back(sample_of(corpus, g));
    return all;
  };
  auto before = with("5");
  auto changed = with("1");
  ASSERT_EQ(changed.resume(before.cursor(500)), 500);
  // Each source continues with its next sample.
  EXPECT_EQ(samples(changed, 0, 500), samples(before, 0, 500));
  std::map<char, int> counts;
  for (const auto& sample : samples(changed, 500, Mix::block)) ++counts[sample.source];
  EXPECT_NEAR(counts['a'], 1024, 2);
  EXPECT_NEAR(counts['b'], 2048, 2);
  EXPECT_NEAR(changed.shares(500, 500 + Mix::block)[2].share, 0.25, 1e-3);
  // The cap applies to the whole run.
  EXPECT_EQ(changed.shares(0, 1'000'000)[2].samples, 5000);
  // A state from after the change needs no permission; one with the weights before it is refused.
  const auto cursor = changed.cursor(700);
  auto resumed = with("1", false);
  ASSERT_EQ(resumed.resume(cursor), 700);
  EXPECT_EQ(samples(resumed, 400, 1000), samples(changed, 400, 1000));
  EXPECT_EQ(resumed.identity(), changed.identity());
  EXPECT_THAT(fault_of([&] { with("5", false).resume(cursor); }),
              HasSubstr("are 1 2 5 by samples (mix 3), but the cursor has "));
  // Two changes at one sample, and another one later. Copies do not inherit the history that a corpus was resumed with.
  auto twice = with("7");
  ASSERT_EQ(twice.resume(changed.cursor(500)), 500);
  auto again = with("2");
  ASSERT_EQ(again.resume(twice.cursor(900)), 900);
  EXPECT_EQ(samples(again, 0, 900), samples(twice, 0, 900));
  auto fresh = again.of_epochs(0);
  auto first = with("2");
  EXPECT_EQ(samples(fresh, 0, 900), samples(first, 0, 900));
}

TEST_F(CorpusMixing, ValidatesTheWeightsOfACursor) {
  const auto fault = [&](const std::string& name, const std::string& value) {
    auto corpus = open(three_, {.resume_weights = true});
    auto saved = Cursor::decode(corpus.cursor(100));
    bool is_there = false;
    for (auto& [key, text] : saved.order) {
      if (key != name) continue;
      text = value;
      is_there = true;
    }
    if (!is_there) saved.order.emplace_back(name, value);
    return fault_of([&] { corpus.resume(saved.encode()); });
  };
  const std::string good = "1 2 5 by samples (mix 3)";
  EXPECT_EQ(fault("weights from sample 50", good), "no fault");
  for (const char* bad : {"", "1 2 5", "1 2 x by samples (mix 3)", "1 -2 5 by samples (mix 3)",
                          "1 inf 5 by tokens (mix 3)", "1 2 5 by words (mix 3)", "1 2 nan by samples (mix 3)"}) {
    EXPECT_THAT(fault("weights", bad), HasSubstr("CorruptMessage: the cursor has invalid weights")) << bad;
    EXPECT_THAT(fault("weights from sample 50", bad), HasSubstr("the cursor has invalid weights")) << bad;
  }
  EXPECT_THAT(fault("weights", "1 2 5 by samples (mix 2)"), HasSubstr("Unsupported: the cursor's sources were mixed"));
  EXPECT_THAT(fault("weights", "1 2 by samples (mix 3)"), HasSubstr("weights of another number of sources"));
  EXPECT_THAT(fault("weights from sample 50", "1 2 by samples (mix 3)"), HasSubstr("invalid weights"));
  EXPECT_THAT(fault("weights from sample 0", good), HasSubstr("invalid weights: weights from sample 0"));
  EXPECT_THAT(fault("weights from sample x", good), HasSubstr("invalid weights: weights from sample x"));
  EXPECT_THAT(fault("weights from sample 101", good), HasSubstr("or from later samples on"));
  EXPECT_THAT(fault("weights from sample 50", "1e-300 2 5 by samples (mix 3)"),
              HasSubstr("InvalidArgument: the weight of"));
}

TEST_F(CorpusMixing, NamesAnInvalidSource) {
  const auto fault = [&](const std::string& json) { return fault_of([&] { open(json); }); };
  EXPECT_THAT(fault(R"({"sources": [{"path": "x*.txt", "weight": 1}]})"), HasSubstr("SourceError: no file matches "));
  EXPECT_THAT(fault(R"({"sources": [{"path": "none.txt", "weight": 1}]})"), HasSubstr("none.txt: No such file"));
  EXPECT_THAT(fault(R"({"sources": [{"path": "a.txt", "weight": 1}, {"path": "c.txt", "weight": 1e-10}]})"),
              HasSubstr("InvalidArgument: the weight of c.txt is 1e-10 of all weights"));
  EXPECT_THAT(fault(R"({"sources": [{"path": "a.txt", "weight": 1, "max_tokens": 3}]})"),
              HasSubstr("the source a.txt may give at most 3 tokens, less than a sample"));
  dir_.write("d.txt", "x");
  EXPECT_THAT(fault(R"({"sources": [{"path": "a.txt", "weight": 1}, {"path": "d.txt", "weight": 1}]})"),
              HasSubstr("the source d.txt holds 2 tokens, but one sample of sequence 4 takes 5"));
  EXPECT_THAT(fault_of([&] {
                Corpus::open({dir_.file("a.txt"), dir_.file("mix.json")}, {.cache_dir = scratch_cache()});
              }),
              HasSubstr("mix.json is a mix and must be the only path"));
}

}  // namespace
}  // namespace levada
