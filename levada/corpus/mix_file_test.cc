#include "levada/corpus/mix_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "levada/base/error.h"
#include "levada/corpus/paths.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CorpusMix parsed(const std::string& json) {
  const ScratchDir dir;
  auto mix = read_mix_file(dir.write("mix.json", json));
  for (auto& source : mix.sources) {
    for (auto& path : source.paths) {
      if (path.starts_with(dir.path())) path = path.substr(dir.path().size() + 1);
    }
  }
  return mix;
}

std::string fault_of_file(const std::string& json) {
  try {
    check(parsed(json));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no fault";
}

TEST(MixFile, NamesSourcesWeightsAndCaps) {
  const auto mix = parsed(R"({"by": "tokens", "sources": [
      {"path": "a/*.jsonl", "weight": 0.7},
      {"path": ["b.txt", "/data/c"], "weight": 3, "name": "books", "max_samples": 5, "max_tokens": 7000000000}]})");
  check(mix);
  EXPECT_EQ(mix.by, CorpusMix::By::tokens);
  ASSERT_EQ(mix.sources.size(), 2);
  EXPECT_THAT(mix.sources[0].paths, ElementsAre("a/*.jsonl"));
  EXPECT_EQ(mix.sources[0].name, "a/*.jsonl");
  EXPECT_EQ(mix.sources[0].weight, 0.7);
  EXPECT_EQ(mix.sources[0].max_samples, std::nullopt);
  EXPECT_THAT(mix.sources[1].paths, ElementsAre("b.txt", "/data/c"));
  EXPECT_EQ(mix.sources[1].name, "books");
  EXPECT_EQ(mix.sources[1].max_samples, 5);
  EXPECT_EQ(mix.sources[1].max_tokens, 7'000'000'000);
  const std::string one = R"({"sources": [{"path": "a", "weight": 1}]})", byte_order_mark = "\xef\xbb\xbf";
  for (const auto& json : {one, byte_order_mark + one}) EXPECT_EQ(parsed(json).by, CorpusMix::By::samples);
}

TEST(MixFile, TakesTheNameOfItsFolderAsItIs) {
  const ScratchDir dir;
  for (const auto* folder : {"[v2]", "v"}) {
    std::filesystem::create_directory(dir.file(folder));
    dir.write(fmt::format("{}/x.jsonl", folder), "x");
  }
  dir.write("[v2]/mix.json", R"({"sources": [{"path": ["*.jsonl", "x.jsonl"], "weight": 1}]})");
  const auto mix = read_mix_file(dir.file("[v2]/mix.json"));
  for (const auto& path : mix.sources.front().paths) {
    EXPECT_THAT(expand_paths({path}).files, ElementsAre(dir.file("[v2]/x.jsonl")));
  }
}

TEST(MixFile, IsDistinguishedFromJsonLines) {
  const ScratchDir dir;
  const auto is_mix = [&](const std::string& text) { return is_mix_file(dir.write("x.json", text)); };
  EXPECT_TRUE(is_mix(R"({"sources": [{"path": "a", "weight": 1}]})"));
  EXPECT_TRUE(is_mix("{\n  \"sources\": []\n}\n"));
  EXPECT_FALSE(is_mix("{\"text\": \"a single document\"}\n"));
  EXPECT_FALSE(is_mix("{\"text\": \"one\"}\n{\"text\": \"two\"}\n"));
}

TEST(MixFile, ErrorsNameTheCauseAndThePlace) {
  const auto source = [](const std::string& rest) {
    return fault_of_file(R"({"sources": [{"path": "a", )" + rest + "}]}");
  };
  EXPECT_THAT(fault_of_file("{"), HasSubstr("mix.json: it is not JSON"));
  EXPECT_THAT(fault_of_file("[]"), HasSubstr("mix.json: it is a list; a .json of data has one object per line"));
  EXPECT_THAT(fault_of_file("1"), HasSubstr("mix.json: it must be an object"));
  EXPECT_THAT(fault_of_file("{}"), HasSubstr("mix.json: \"sources\" is missing"));
  EXPECT_THAT(fault_of_file(R"({"sources": []})"), HasSubstr("\"sources\" is an empty list"));
  EXPECT_THAT(fault_of_file(R"({"sources": {}})"), HasSubstr("\"sources\" must be a list"));
  EXPECT_THAT(fault_of_file(R"({"sources": [1]})"), HasSubstr("mix.json: sources[0]: it must be an object"));
  EXPECT_THAT(fault_of_file(R"({"sources": [], "order": 1})"),
              HasSubstr("unknown key \"order\"; the keys are sources, by"));
  EXPECT_THAT(fault_of_file(R"({"sources": [], "by": "bytes"})"),
              HasSubstr("\"by\" is \"bytes\"; it must be samples or"));
  EXPECT_THAT(fault_of_file(R"({"sources": [], "by": 1})"), HasSubstr("\"by\" must be a string"));
  EXPECT_THAT(fault_of_file(R"({"sources": [{"weight": 1}]})"), HasSubstr("sources[0]: \"path\" is missing"));
  EXPECT_THAT(fault_of_file(R"({"sources": [{"path": [], "weight": 1}]})"), HasSubstr("\"path\" is an empty list"));
  EXPECT_THAT(fault_of_file(R"({"sources": [{"path": [1], "weight": 1}]})"), HasSubstr("a path or a list of paths"));
  EXPECT_THAT(source(R"("weigth": 1)"), HasSubstr("sources[0]: unknown key \"weigth\"; the keys are path, weight"));
  EXPECT_THAT(source(R"("name": "x")"), HasSubstr("sources[0]: \"weight\" is missing"));
  EXPECT_THAT(source(R"("weight": "1")"), HasSubstr("\"weight\" must be a number"));
  EXPECT_THAT(source(R"("weight": 0)"), HasSubstr("the weight of a is 0; it must be a number above zero"));
  EXPECT_THAT(source(R"("weight": -2)"), HasSubstr("the weight of a is -2"));
  EXPECT_THAT(source(R"("weight": 1, "max_samples": 0)"), HasSubstr("\"max_samples\" is 0; it must be a whole number"));
  EXPECT_THAT(source(R"("weight": 1, "max_tokens": 1.5)"), HasSubstr("\"max_tokens\" is 1.5"));
  EXPECT_THAT(source(R"("weight": 1, "max_tokens": 99999999999999999999)"), HasSubstr("\"max_tokens\" is"));
  EXPECT_THAT(fault_of_file(R"({"sources": [{"path": "b.json", "weight": 1, "name": "b"}]})"),
              HasSubstr("the source b is b.json, a mix, and mixes do not nest"));
}

TEST(MixFile, ValidatesAMixBuiltInCode) {
  EXPECT_THROW(check(CorpusMix{}), InvalidArgument);
  EXPECT_THROW(check({.sources = {{.name = "a", .paths = {}}}}), InvalidArgument);
  EXPECT_THROW(check({.sources = {{.paths = {"a"}, .weight = std::numeric_limits<double>::infinity()}}}),
               InvalidArgument);
  EXPECT_THROW(check({.sources = {{.paths = {"a"}, .max_samples = -1}}}), InvalidArgument);
}

}  // namespace
}  // namespace levada
