// Copies of texts, and texts that differ slightly, in one token cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "levada/base/fault_testing.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/sampled_digest.h"
#include "levada/tokens/token_caching_testing.h"

namespace levada {
namespace {

using ::testing::SizeIs;
namespace fs = std::filesystem;

/// Changes a file but not its bytes.
struct Copying {
  std::string name;
  std::function<std::string(const std::string& path)> act;  ///< returns the path of the bytes afterwards
};

std::vector<Copying> copyings() {
  return {
      {"chmod", [](const std::string& path) { return ::chmod(path.c_str(), 0640), path; }},
      {"link",
       [](const std::string& path) { return fs::create_hard_link(path, path + ".link.jsonl"), path + ".link.jsonl"; }},
      {"rename",
       [](const std::string& path) { return fs::rename(path, path + ".moved.jsonl"), path + ".moved.jsonl"; }},
      {"touch",
       [](const std::string& path) {
         fs::last_write_time(path, fs::file_time_type::clock::now() + std::chrono::hours(1));
         return path;
       }},
      {"cp", [](const std::string& path) { return fs::copy_file(path, path + ".copy.jsonl"), path + ".copy.jsonl"; }},
      {"cp -p", [](const std::string& path) {
         fs::copy_file(path, path + ".kept.jsonl");
         fs::last_write_time(path + ".kept.jsonl", fs::last_write_time(path));
         return path + ".kept.jsonl";
       }}};
}

using TokenCacheCopies = TokenCaching;

TEST_F(TokenCacheCopies, ReusesTheTokensOfACopy) {
  for (const Copying& copying : copyings()) {
    const auto path = write_large(1);
    const auto made = tokenize_alone(path);
    const auto num_texts = tokenizer_->num_texts.load();
    const auto copy = copying.act(path);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(tokenize_alone(copy).prefix, made.prefix) << copying.name;
      EXPECT_EQ(tokenize_alone(copy).bytes_read, 0) << copying.name;
    }
    EXPECT_EQ(tokenizer_->num_texts, num_texts) << copying.name;
    EXPECT_THAT(open().folder().entries(), SizeIs(1)) << copying.name;
    for (const auto& file : fs::directory_iterator(dir_.path())) {
      if (file.path().extension() == ".jsonl" && file.path() != a_) fs::remove(file);
    }
  }
}

TEST_F(TokenCacheCopies, StopsComparingAtTheNextPieceIfTheProgressThrows) {
  const auto path = write_large(4);
  tokenize_alone(path);
  fs::last_write_time(path, fs::file_time_type::clock::now() + std::chrono::hours(1));
  int calls = 0;
  const auto stop = [&](const PrepareProgress& progress) {
    EXPECT_EQ(progress.path, path);
    ++calls;
    throw InvalidArgument("enough");
  };
  auto cache = open();
  EXPECT_EQ(fault_of([&] { cache.tokenize({path}, {.tokenizer = tokenizer_, .threads = 1, .progress = stop}); }),
            "InvalidArgument: enough");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(tokenize(cache, path).bytes_read, 0);
}

TEST_F(TokenCacheCopies, TokenizesCopiesInOneRunWithoutWaiting) {
  std::vector<std::string> copies = {write_large(1)};
  for (int i = 1; i < 4; ++i) {
    copies.push_back(dir_.file(std::to_string(i) + ".jsonl"));
    fs::copy_file(copies.front(), copies.back());
    fs::last_write_time(copies.back(), fs::last_write_time(copies.front()) + std::chrono::hours(i));
  }
  auto cache = open();
  const auto tokens = cache.tokenize(copies, {.tokenizer = tokenizer_, .threads = 4});
  for (const auto& each : tokens) EXPECT_EQ(each.prefix, tokens.front().prefix);
  EXPECT_THAT(warnings_, testing::IsEmpty());
}

TEST_F(TokenCacheCopies, DistinguishesTextsThatDifferBetweenTheSampledBytes) {
  std::string text(std::size_t{1} << 20, 'a');
  const auto sampled = sampled_digest(*open_file(dir_.write("1.txt", text)), text.size());
  std::size_t at = 0;
  do text[at += 1000] = 'b';
  while (sampled_digest(*open_file(dir_.write("2.txt", text)), text.size()) != sampled && (text[at] = 'a', true));
  fs::last_write_time(dir_.file("2.txt"), fs::file_time_type::clock::now() + std::chrono::hours(1));
  std::vector<std::vector<std::int64_t>> tokens;
  for (int round = 0; round < 2; ++round) {
    auto cache = open();
    const auto both = cache.tokenize({dir_.file("1.txt"), dir_.file("2.txt")}, {.tokenizer = tokenizer_});
    EXPECT_NE(both[0].prefix, both[1].prefix);
    EXPECT_EQ(tokens_in(both[0].prefix)[at], 'a');
    EXPECT_EQ(tokens_in(both[1].prefix)[at], 'b');
    EXPECT_EQ(both[0].bytes_read > 0, round == 0);
    EXPECT_EQ(both[1].bytes_read > 0, round == 0);
  }
}

TEST_F(TokenCacheCopies, ComparesTextsOfUnknownTimeWhole) {
  const std::string text(std::size_t{1} << 20, 'a');
  const auto sampled = [](const std::string& content) {
    return sampled_digest(MemoryFile("a.txt", content), content.size());
  };
  auto other = text;
  for (std::size_t at = 0; sampled(other) != sampled(text) || other == text; at += 1000) {
    ASSERT_LT(at, text.size()) << "every byte is sampled";
    other = text;
    other[at] = 'b';
  }
  TokenizeTexts how;
  const auto entries = [&](std::map<std::string, std::string> texts) {
    std::vector<std::string> names, found;
    for (const auto& [name, content] : texts) names.push_back(name);
    how.open = open_from(std::move(texts));
    for (const auto& tokens : open().tokenize(names, how)) found.push_back(tokens.prefix);
    return found;
  };
  const auto first = entries({{"a.txt", text}, {"b.txt", other}, {"c.txt", text}});
  EXPECT_EQ(first[0], first[2]);
  EXPECT_NE(first[0], first[1]) << "in one pass";
  EXPECT_EQ(entries({{"a.txt", other}}).front(), first[1]) << "in a later run";
  EXPECT_EQ(entries({{"a.txt", text}}).front(), first[0]);
}

}  // namespace
}  // namespace levada
