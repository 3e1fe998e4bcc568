#include "levada/corpus/corpus.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "levada/base/error.h"
#include "levada/base/fault_testing.h"
#include "levada/corpus/corpus_testing.h"
#include "levada/sources/megatron_testing.h"
#include "levada/tokens/compression_testing.h"
#include "levada/tokens/tokenizer_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Returns all tokens, made in the plain way: everything parsed and in memory.
std::vector<std::int64_t> plain_tokens(const Files& files, const std::string& field = "text") {
  std::vector<std::int64_t> tokens;
  const auto add = [&](const std::string& text) {
    if (text.empty()) return;
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    tokens.push_back(256);
  };
  for (const auto& [path, content] : files) {
    if (path.ends_with(".txt")) {
      add(content);
      continue;
    }
    std::istringstream lines(content);
    for (std::string line; std::getline(lines, line);) {
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      if (const auto object = nlohmann::json::parse(line, nullptr, false); !object.is_discarded()) add(object[field]);
    }
  }
  return tokens;
}

std::vector<std::int64_t> values(const Tree& batch, const char* field) {
  const auto span = batch.tensor(field).as<std::int64_t>();
  return {span.begin(), span.end()};
}

void expect_sample(const Tree& batch, const std::vector<std::int64_t>& tokens, std::int64_t sequence,
                   std::int64_t length) {
  const auto begin = tokens.begin() + sequence * length;
  EXPECT_EQ(values(batch, "tokens"), std::vector(begin, begin + length)) << "sequence " << sequence;
  EXPECT_EQ(values(batch, "labels"), std::vector(begin + 1, begin + length + 1)) << "sequence " << sequence;
}

/// Compares with plain_tokens(): sequences one by one in a scrambled order, and all of them as one batch.
void expect_like_plain(const Files& files, std::int64_t length, CorpusOptions options = {}) {
  const auto tokens = plain_tokens(files, options.text_field.empty() ? "text" : options.text_field);
  options.sequence = length;
  auto corpus = open_files(files, options);
  const auto count = (static_cast<std::int64_t>(tokens.size()) - 1) / length;
  ASSERT_EQ(corpus.tokens(), tokens.size());
  ASSERT_EQ(corpus.sequences(), count);
  HeapMemory memory;
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  order.resize(std::min<std::size_t>(order.size(), 500));
  for (const auto sequence : order) expect_sample(corpus.read(sequence, 1, memory).value(), tokens, sequence, length);
  const auto all = corpus.read(0, count, memory).value();
  EXPECT_EQ(values(all, "tokens"), std::vector(tokens.begin(), tokens.begin() + count * length));
  EXPECT_EQ(values(all, "labels"), std::vector(tokens.begin() + 1, tokens.begin() + count * length + 1));
}

/// Makes lines whose text has all kinds of characters, each written in one of the ways that JSON allows.
class LineMaker {
 public:
  explicit LineMaker(unsigned seed) : random_(seed) {}

  std::string file(int lines) {
    std::string content;
    for (int i = 0; i < lines; ++i) content += line() + (one_in(4) ? "\r\n" : "\n") + (one_in(6) ? " \t\n\n" : "");
    if (one_in(2)) content.pop_back();
    return content;
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  std::string space() { return one_in(3) ? " \t" : ""; }

  std::string character() {
    static const std::vector<std::string> all = {"a",
                                                 "Z",
                                                 " ",
                                                 "/",
                                                 "~",
                                                 "\x7f",
                                                 "é",
                                                 "ß",
                                                 "→",
                                                 "字",
                                                 "😀",
                                                 "\\n",
                                                 "\\t",
                                                 "\\\"",
                                                 "\\\\",
                                                 "\\/",
                                                 "\\b",
                                                 "\\f",
                                                 "\\r",
                                                 "\\u0000",
                                                 "\\u0041",
                                                 "\\u00e9",
                                                 "\\uD83D\\uDe00",
                                                 "\\u20ac",
                                                 "\\uffff",
                                                 "\\ud7ff",
                                                 "\\ue000",
                                                 "\\u07FF",
                                                 "\\u0800",
                                                 "\\udbff\\udfff"};
    return all[below(all.size())];
  }

  std::string string() {
    std::string text;
    const auto pieces = one_in(5) ? 0 : one_in(10) ? below(2000) : below(40);
    for (std::size_t i = 0; i < pieces; ++i) text += one_in(3) ? character() : std::string(below(40), 'x');
    return '"' + text + '"';
  }

  std::string value() {
    switch (below(7)) {
      case 0: return "null";
      case 1: return "-12.5e+300";
      case 2: return "123456789012345678901234567890";
      case 3: return "[1, [], {\"text\": \"inner\"}, \"]\", true]";
      case 4: return "{\"text\":{\"a\":[{}]} , \"}\":\"\\\"}\"}";
      default: return string();
    }
  }

  std::string line() {
    std::string fields;
    for (std::size_t i = below(3); i > 0; --i) fields += fmt::format("\"f{}\"{}:{}{},", i, space(), space(), value());
    fields += fmt::format("{}{}{}:{}", space(), one_in(4) ? "\"te\\u0078t\"" : "\"text\"", space(), string());
    for (std::size_t i = below(3); i > 0; --i) fields += fmt::format("{},{}\"g{}\":{}", space(), space(), i, value());
    return space() + "{" + fields + space() + "}" + space();
  }

  std::mt19937 random_;
};

TEST(Corpus, ReturnsTheSequencesOfACompleteParse) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    const Files files = {{"a.jsonl", LineMaker(seed).file(60)}};
    for (const std::int64_t length : {1, 2, 7, 64, 1000}) expect_like_plain(files, length);
  }
}

TEST(Corpus, ConcatenatesSeveralFiles) {
  const Files files = {{"a.jsonl", LineMaker(7).file(3)},
                       {"b.txt", "Grüße!\n" + std::string(5, '\0')},
                       {"c.jsonl", "{\"text\":\"\"}"},
                       {"d.jsonl", LineMaker(8).file(20)},
                       {"e.txt", "x"}};
  for (const std::int64_t length : {1, 2, 7, 64, 1000}) expect_like_plain(files, length);
}

TEST(Corpus, EveryEpochHasAnotherOrderWithEachSequenceOnce) {
  std::string text;
  for (char i = 0; i < 100; ++i) text += i + std::string(9, 'a');
  const Files files = {{"a.txt", text}};
  auto corpus = open_files(files, {.sequence = 10, .shuffle_seed = 3, .epochs = 2});
  EXPECT_EQ(corpus.size(), 200);
  HeapMemory memory;
  std::vector<std::vector<std::int64_t>> epochs(2);
  for (std::int64_t g = 0; g < 200; ++g) {
    epochs[static_cast<std::size_t>(g / 100)].push_back(values(corpus.read(g, 1, memory).value(), "tokens")[0]);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (auto& epoch : epochs) {
    std::ranges::sort(epoch);
    for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(epoch[static_cast<std::size_t>(i)], i);
  }
}

TEST(Corpus, SkipsAndCountsBadLines) {
  std::mt19937 random(4);
  LineMaker lines(9);
  std::string content;
  int bad = 0;
  std::vector<std::string> places;
  for (int i = 0; i < 200; ++i) {
    const auto kind = random() % 4;
    bad += kind < 2;
    const auto line = 1 + std::ranges::count(content, '\n');
    if (kind < 2 && places.size() < 10) places.push_back(fmt::format("a.jsonl:{}", line));
    content += kind == 0 ? "{\"text\": \"cut off" : kind == 1 ? "[]]" : lines.file(1);
    content += '\n';
  }
  for (const std::int64_t length : {1, 7, 1000}) expect_like_plain({{"a.jsonl", content}}, length, {.skip_bad = true});
  const auto corpus = open_files({{"a.jsonl", content}}, {.sequence = 7, .skip_bad = true});
  EXPECT_EQ(corpus.bad_lines().count, bad);
  EXPECT_EQ(corpus.bad_lines().first, places);
  EXPECT_EQ(corpus.documents(), 200 - bad);
}

TEST(Corpus, FailsIfTooManyLinesAreBad) {
  const std::string half = "{\"text\": \"some text\"}\nbad\n", none = "{\"text\": \"some text\"}\n";
  const Files files = {{"a.jsonl", half}, {"b.jsonl", none}, {"c.jsonl", half + "bad\n"}};
  const auto fault = [&](double max_bad) {
    return fault_of([&] { open_files(files, {.sequence = 4, .skip_bad = true, .max_bad = max_bad}); });
  };
  EXPECT_EQ(fault(1), "no fault");
  EXPECT_THAT(fault(0.5), AllOf(HasSubstr("SourceError: "),
                                HasSubstr("c.jsonl: 2 of 3 lines cannot be used, but at most "
                                          "0.5 of a text's lines may be skipped"),
                                Not(HasSubstr("a.jsonl"))));
  EXPECT_THAT(fault(0), AllOf(HasSubstr("2 of 3 texts cannot be used:"), HasSubstr("a.jsonl: 1 of 2 lines"),
                              HasSubstr("c.jsonl: 2 of 3 lines")));
  for (const double wrong : {-0.1, 1.1, std::nan("")})
    EXPECT_THAT(fault(wrong), HasSubstr("InvalidArgument: max_bad is "));
}

TEST(Corpus, ReadsTheRequestedField) {
  const Files files = {{"a.jsonl", "{\"text\":1,\"body\":\"abcdefgh\"}\n{\"body\":\"ij\",\"text\":null}\n"}};
  expect_like_plain(files, 3, {.text_field = "body"});
}

TEST(Corpus, CompressionDoesNotChangeTheDigest) {
  const auto content = LineMaker(2).file(30);
  const auto plain = open_files({{"a.jsonl", content}}, {.sequence = 8});
  EXPECT_EQ(open_files({{"a.jsonl.gz", gzip(content)}}, {.sequence = 8}).digest(), plain.digest());
  EXPECT_EQ(open_files({{"a.jsonl.zst", zstd(content)}}, {.sequence = 8}).digest(), plain.digest());
}

TEST(Corpus, LaterRunsDoNotReadTextAgain) {
  const ScratchDir cache;
  const auto content = LineMaker(3).file(30);
  const auto prepared = [&](const std::string& end_of_document) {
    return open_files({{"a.jsonl", content}},
                      {.sequence = 8, .end_of_document = end_of_document, .cache_dir = cache.path()})
        .stats()
        .prepare_bytes;
  };
  const auto first = prepared("");
  EXPECT_EQ(prepared(""), first - content.size());
  EXPECT_EQ(prepared("256"), first - content.size()) << "the same token";
  EXPECT_EQ(prepared("0"), first);
}

TEST(Corpus, LaterRunsDoNotReadALargeIndexAgain) {
  const ScratchDir dir;
  constexpr std::int64_t documents = 250'000;
  std::vector<std::int64_t> begins(documents + 1);
  std::iota(begins.begin(), begins.end(), 0);
  const auto idx = raw_index(1, 1, std::vector<std::int32_t>(documents, 2), begins).bytes();
  dir.write("a.bin", std::string(2 * documents, 'a'));
  std::filesystem::last_write_time(dir.write("a.idx", idx),
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  const auto open = [&](const std::vector<double>& split, Packing packing = Packing::cut) {
    return Corpus::open({dir.file("a")},
                        {.sequence = 8, .packing = packing, .split = split, .cache_dir = dir.file("cache")});
  };
  const auto first = open({});
  EXPECT_EQ(first.stats().prepare_bytes, idx.size());
  for (const auto& split : {std::vector<double>{}, std::vector<double>{0.9, 0.1}}) {
    const auto again = open(split);
    EXPECT_EQ(again.stats().prepare_bytes, 0U);
    EXPECT_EQ(again.size(),
              split.empty() ? first.size() : std::optional<std::int64_t>((documents * 9 / 10 * 2 - 1) / 8));
  }
  EXPECT_EQ(open({}).digest(), first.digest());
  EXPECT_EQ(open({}, Packing::best_fit).stats().prepare_bytes, 0U);
}

TEST(Corpus, UsesTheGivenTokenizerAndEndOfDocument) {
  const auto tokenizer = std::make_shared<HookedTokenizer>();
  const Files files = {{"a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cd\"}\n"}};
  auto corpus = open_files(files, {.sequence = 5, .tokenizer = tokenizer, .end_of_document = "#"});
  EXPECT_EQ(tokenizer->num_texts, 2);
  HeapMemory memory;
  const auto batch = corpus.read(0, 1, memory).value();
  EXPECT_EQ(values(batch, "tokens"), (std::vector<std::int64_t>{'a', 'b', '#', 'c', 'd'}));
  EXPECT_EQ(values(batch, "labels"), (std::vector<std::int64_t>{'b', '#', 'c', 'd', '#'}));
  EXPECT_THROW(open_files(files, {.tokenizer = tokenizer, .end_of_document = "none"}), InvalidArgument);
}

TEST(Corpus, ReadingABatchEqualsReadingItsSamples) {
  const Files files = {{"a.jsonl", LineMaker(1).file(50)}, {"b.txt", std::string(500, 'b')}};
  auto corpus = open_files(files, {.sequence = 16, .shuffle_seed = 5, .epochs = 3});
  HeapMemory memory;
  for (std::int64_t first = 0; first + 8 <= corpus.size(); first += 8) {
    const auto batch = corpus.read(first, 8, memory).value();
    for (std::int64_t i = 0; i < 8; ++i) {
      const auto alone = corpus.read(first + i, 1, memory).value();
      for (const auto* field : {"tokens", "labels"}) {
        EXPECT_EQ(Tree(Tensor::copy_of(batch.tensor(field).slice(0, i, i + 1))), alone.at(field)) << first + i;
      }
    }
  }
}

/// Counts what is allocated from it.
class CountingMemory final : public Memory {
 public:
  void reserve(std::size_t bytes) override { reserved += bytes; }
  Tensor empty(DType dtype, const Shape& shape) override {
    auto tensor = Tensor::empty(dtype, shape);
    given += align_up(tensor.view().byte_count(), 64);
    return tensor;
  }

  std::size_t reserved = 0, given = 0;
};

TEST(Corpus, ReturnsEveryFieldInTheCallersMemory) {
  auto corpus = open_files({{"a.txt", "abcdefghijk"}}, {.sequence = 3, .attention_mask = true});
  CountingMemory memory;
  const auto batch = corpus.read(1, 2, memory).value();
  EXPECT_EQ(memory.reserved, memory.given);
  EXPECT_EQ(batch, Tree::dict({{"tokens", Tensor::of<std::int64_t>({2, 3}, {'d', 'e', 'f', 'g', 'h', 'i'})},
                               {"labels", Tensor::of<std::int64_t>({2, 3}, {'e', 'f', 'g', 'h', 'i', 'j'})},
                               {"position_ids", Tensor::of<std::int64_t>({2, 3}, {0, 1, 2, 0, 1, 2})},
                               {"loss_mask", Tensor::of<float>({2, 3}, {1, 1, 1, 1, 1, 1})},
                               {"attention_mask", Tensor::of<bool>({2, 1, 3, 3}, {false, true, true,    //
                                                                                  false, false, true,   //
                                                                                  false, false, false,  //
                                                                                  false, true, true,    //
                                                                                  false, false, true,   //
                                                                                  false, false, false})}}));
  EXPECT_FALSE(open_files({{"a.txt", "abcd"}}, {.sequence = 3}).read(0, 1, memory)->contains("attention_mask"));
}

TEST(Corpus, EndsAfterItsEpochsOrNever) {
  HeapMemory memory;
  auto twice = open_files({{"a.txt", "abcdefghijk"}}, {.sequence = 3, .epochs = 2});
  EXPECT_EQ(twice.sequences(), 3);
  EXPECT_EQ(twice.size(), 6);
  EXPECT_EQ(values(twice.read(5, 1, memory).value(), "tokens"), values(twice.read(2, 1, memory).value(), "tokens"));
  EXPECT_EQ(twice.read(5, 2, memory)->tensor("tokens").shape(), (Shape{1, 3})) << "fewer only at the end";
  EXPECT_EQ(twice.read(6, 1, memory), std::nullopt);
  auto endless = open_files({{"a.txt", "abcdefghijk"}}, {.sequence = 3, .epochs = 0});
  EXPECT_EQ(endless.size(), std::nullopt);
  EXPECT_EQ(values(endless.read(3'000'000'000'000, 1, memory).value(), "tokens"),
            values(twice.read(0, 1, memory).value(), "tokens"));
}

TEST(Corpus, ResumesFromItsCursor) {
  const Files files = {{"a.txt", std::string(100, 'a')}};
  auto corpus = open_files(files, {.sequence = 10, .shuffle_seed = 1});
  EXPECT_EQ(corpus.resume(corpus.cursor(7)), 7);
  // Neither the number of epochs nor the file's name affects the meaning of a sample's number.
  auto renamed = open_files({{"b.txt", std::string(100, 'a')}}, {.sequence = 10, .shuffle_seed = 1, .epochs = 9});
  EXPECT_EQ(renamed.resume(corpus.cursor(7)), 7);
}

TEST(Corpus, RejectsACursorOfOtherSamples) {
  const std::string text(100, 'a');
  auto corpus = open_files({{"a.txt", text}}, {.sequence = 10, .shuffle_seed = 1});
  const auto refusal = [&](const Files& files, CorpusOptions options) -> std::string {
    try {
      open_files(files, std::move(options)).resume(corpus.cursor(7));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no refusal";
  };
  EXPECT_THAT(refusal({{"a.txt", text}}, {.sequence = 20, .shuffle_seed = 1}), HasSubstr("sequence is 20, there 10"));
  EXPECT_THAT(refusal({{"a.txt", text}}, {.sequence = 10, .shuffle_seed = 2}), HasSubstr("shuffle is seed 2 "));
  EXPECT_THAT(refusal({{"a.txt", text}}, {.sequence = 10}), HasSubstr("shuffle is no, there seed 1"));
  EXPECT_THAT(refusal({{"a.txt", text}}, {.sequence = 10, .shuffle_seed = 1, .end_of_document = "0"}),
              HasSubstr("tokenizer is bytes, documents end with 0, there bytes, documents end with 256"));
  EXPECT_THAT(refusal({{"a.txt", std::string(100, 'b')}}, {.sequence = 10, .shuffle_seed = 1}), HasSubstr("corpus is"));
  EXPECT_THAT(refusal({{"a.txt", text}, {"b.txt", text}}, {.sequence = 10, .shuffle_seed = 1}), HasSubstr("corpus is"));
  EXPECT_THROW(corpus.resume(as_bytes("nonsense")), CorruptMessage);
}

TEST(Corpus, ReadsLittleMoreThanItReturns) {
  std::mt19937 random(5);
  std::string content;
  for (int document = 0; document < 400; ++document) {
    content += "{\"path\": \"file.py\", \"text\": \"";
    for (std::size_t line = random() % 80; line > 0; --line) {
      content += std::string(random() % 60, 'x') + (random() % 3 == 0 ? "\\\"é\\\"" : "") + "\\n";
    }
    content += "\"}\n";
  }
  for (const std::int64_t length : {256, 1024, 4096}) {
    auto corpus = open_files({{"a.jsonl", content}}, {.sequence = length, .shuffle_seed = 3});
    HeapMemory memory;
    EXPECT_EQ(corpus.stats().bytes_read, 0);
    for (std::int64_t g = 0; g < corpus.size(); ++g) corpus.read(g, 1, memory);
    const auto stats = corpus.stats();
    EXPECT_GT(stats.bytes_read, stats.bytes_consumed);
    EXPECT_LE(static_cast<double>(stats.bytes_read), 1.01 * static_cast<double>(stats.bytes_consumed)) << length;
    EXPECT_EQ(stats.bytes_consumed, 2 * length * corpus.sequences()) << "two bytes are a token";
  }
}

}  // namespace
}  // namespace levada
