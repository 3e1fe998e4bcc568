#include "levada/corpus/corpus.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "levada/base/error.h"
#include "levada/sources/memory_file.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

using Files = std::map<std::string, std::string>;

/// A corpus of files that lie in memory, in the order of their names.
Corpus open_files(const Files& files, CorpusOptions options) {
  std::vector<std::string> paths;
  for (const auto& [path, content] : files) paths.push_back(path);
  options.cache = false;
  options.open = [&](const std::string& path) { return std::make_unique<MemoryFile>(path, files.at(path)); };
  return Corpus::open(paths, options);
}

/// All tokens, made the plain way: everything parsed, everything in memory.
std::vector<std::int64_t> plain_tokens(const Files& files, const std::string& field = "text") {
  std::vector<std::int64_t> tokens;
  const auto add = [&](const std::string& text) {
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

/// Sequences alone, in a scrambled order, and all of them as one batch.
void expect_like_plain(const Files& files, std::int64_t length, CorpusOptions options = {}) {
  const auto tokens = plain_tokens(files, options.text_field);
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

/// A line whose text has some of everything, written in one of the ways JSON allows.
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

TEST(Corpus, GivesEverySequenceThatParsingEverythingGives) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const Files files = {{"a.jsonl", LineMaker(seed).file(60)}};
    for (const std::int64_t length : {1, 2, 7, 64, 1000}) expect_like_plain(files, length);
  }
}

TEST(Corpus, LaysSeveralFilesEndToEnd) {
  const Files files = {{"a.jsonl", LineMaker(7).file(3)},
                       {"b.txt", "Grüße\0!\n" + std::string(5, '\0')},
                       {"c.jsonl", "{\"text\":\"\"}"},
                       {"d.jsonl", LineMaker(8).file(20)},
                       {"e.txt", "x"}};
  for (const std::int64_t length : {1, 2, 7, 64, 1000}) expect_like_plain(files, length);
}

TEST(Corpus, GivesAnotherOrderInEveryEpochAndEachSequenceOnceInIt) {
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

}  // namespace
}  // namespace levada
