#include "levada/sources/jsonl_index.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"
#include "levada/sources/memory_file_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

FileIndex index_of(const std::string& content, const TokenFileOptions& options = {.stride = 4}) {
  return index_jsonl(MemoryFile("c.jsonl", content), options);
}

std::string fault_of(const std::string& content, std::uint64_t line_limit = longest_line) {
  try {
    index_jsonl(MemoryFile("c.jsonl", content), {}, line_limit);
  } catch (const SourceError& error) {
    return error.what();
  }
  return "no fault";
}

std::vector<std::uint64_t> places(std::initializer_list<TextPlace> list) {
  std::vector<std::uint64_t> packed;
  for (const auto& place : list) packed.push_back(place.packed());
  return packed;
}

TEST(JsonlIndex, CountsTokensAndNotesWhereTheCutsFall) {
  //                          offset 9: a         offset 24: b
  const auto index = index_of("{\"text\":\"abc\"}\n{\"text\":\"bcdefg\"}\n");
  EXPECT_EQ(index.contents.documents, 2);
  EXPECT_EQ(index.contents.tokens, 4 + 7);
  EXPECT_EQ(index.cuts, places({{9, 0}, {24, 0}, {28, 0}}));
  EXPECT_EQ(index_of("{\"text\":\"abc\"}", {.stride = 3, .phase = 2}).cuts, places({{11, 0}}));
}

TEST(JsonlIndex, CutsInsideAnEscapeAndAtTheEndOfADocument) {
  const auto index = index_of("{\"text\":\"a\\ud83d\\ude00\"}\n{\"text\":\"\"}", {.stride = 1});
  EXPECT_EQ(index.cuts, places({{9, 0}, {10, 0}, {10, 1}, {10, 2}, {10, 3}, {22, 0}, {34, 0}}));
}

TEST(JsonlIndex, TakesTheTextWhereverItStandsInTheObject) {
  const auto index = index_of(
      "\r\n \t\r\n {\"a\" : {\"text\":[1,{}]}, \"te\\u0078t\" :\t\"xy\" , \"b\":[null,true,-1.5e9,\"\\u00e9\"]} "
      "\r\n\n");
  EXPECT_EQ(index.contents.documents, 1);
  EXPECT_EQ(index.contents.tokens, 3);
  EXPECT_EQ(index.contents.bad_lines, 0);
}

struct LimitedIndexing {
  std::string error;  ///< empty: the file was indexed
  std::vector<std::string> warnings;
};

/// Indexes lines of 91 tokens, each with a sample offset of 8 bytes, where `available` bytes of memory are left.
LimitedIndexing index_lines(int lines, std::uint64_t available, bool by_document = false) {
  std::string content;
  for (int line = 0; line < lines; ++line) content += "{\"text\":\"" + std::string(90, 'a') + "\"}\n";
  LimitedIndexing result;
  const auto limits = [=] { return MemoryLimits{.total = std::uint64_t{1} << 30, .available = available}; };
  const TokenFileOptions options{.stride = 1, .by_document = by_document, .warn = [&](const std::string& text) {
                                   result.warnings.push_back(text);
                                 }};
  try {
    index_jsonl(MemoryFile("c.jsonl", content), options, longest_line, limits);
  } catch (const InvalidArgument& error) {
    result.error = error.what();
  }
  return result;
}

constexpr std::uint64_t mib = 1 << 20;

TEST(JsonlIndex, RefusesToGrowBeyondTheMemoryThatIsAvailableAndSaysWhatAllOfItTakes) {
  const auto refused = index_lines(6000, mib / 2);
  EXPECT_EQ(refused.error,
            "indexing c.jsonl takes about 8.0 MiB of memory, but only 1.5 MiB of the 1.0 GiB that the machine and this "
            "process's control groups allow are available: allow it more memory, or choose a longer sequence");
  EXPECT_THAT(refused.warnings, ElementsAre());
  EXPECT_THAT(index_lines(6000, mib / 2, true).error, HasSubstr(", or cut documents instead of packing them"));
}

TEST(JsonlIndex, WarnsAtItsFirstLookAtTheLimitsThatTheWholeWillNotFit) {
  const auto refused = index_lines(6000, 2 * mib);
  EXPECT_THAT(refused.warnings, ElementsAre(HasSubstr("indexing c.jsonl takes about 8.0 MiB of memory, but only 3.0")));
  EXPECT_THAT(refused.error, HasSubstr("takes about 8.0 MiB of memory, but only 6.0 MiB"));
}

TEST(JsonlIndex, NeitherWarnsNorStopsWhereThereIsMemory) {
  const auto indexed = index_lines(6000, 64 * mib);
  EXPECT_EQ(indexed.error, "");
  EXPECT_THAT(indexed.warnings, ElementsAre());
  EXPECT_EQ(index_lines(1500, mib + mib / 4).error, "") << "1 MiB is full behind 96 % of the file";
}

TEST(JsonlIndex, ReadsNumbersOfAnyMagnitude) {
  EXPECT_EQ(fault_of("{\"id\":123456789012345678901234567890,\"x\":1e999,\"y\":-0,\"text\":\"\"}"), "no fault");
}

TEST(JsonlIndex, NamesFileLineAndWhatIsWrong) {
  EXPECT_THAT(fault_of("{\"text\":\"a\"}\n\n{\"text\":\"a\"\n"), HasSubstr("c.jsonl:3: the line cannot be used: "));
  EXPECT_THAT(fault_of("hello"), HasSubstr("it is not JSON"));
  EXPECT_THAT(fault_of("[1]"), HasSubstr("it is not a JSON object"));
  EXPECT_THAT(fault_of("\"text\""), HasSubstr("it is not a JSON object"));
  EXPECT_THAT(fault_of("{\"text\":\"a\xff\"}"), HasSubstr("it is not UTF-8"));
  EXPECT_THAT(fault_of("{\"text\":\"a\tb\"}"), HasSubstr("a control character stands in a string"));
  EXPECT_THAT(fault_of("{\"text\":\"a}"), HasSubstr("a string has no end"));
  EXPECT_THAT(fault_of("{\"text\":\"\\ud800\"}"), AllOf(HasSubstr("half of a surrogate pair"), HasSubstr("\\ud800")));
  EXPECT_THAT(fault_of("{\"text\":\"\\q\"}"), HasSubstr("an escape is wrong, at \\q"));
  EXPECT_THAT(fault_of("{\"text\":\"\",\"a\":\"\\q\"}"), HasSubstr("an escape is wrong"));
  EXPECT_THAT(fault_of("{\"title\":\"x\",\"id\":1}"), HasSubstr("it has no field \"text\", but \"title\", \"id\""));
  EXPECT_THAT(fault_of("{}"), HasSubstr("it has no field \"text\", nor any other"));
  EXPECT_THAT(fault_of("{\"text\":5}"), HasSubstr("its field \"text\" is not a string"));
  EXPECT_THAT(fault_of("{\"text\":null}"), HasSubstr("is not a string"));
  EXPECT_THAT(fault_of("{\"text\":\"a\",\"text\":\"b\"}"), HasSubstr("it has two fields \"text\""));
  EXPECT_THAT(fault_of("{\"text\":\"a\"} {\"text\":\"b\"}"), HasSubstr("it is not JSON"));
  EXPECT_THAT(fault_of("{\"text\":\"" + std::string(100, 'a') + "\"}", 99), HasSubstr("it is longer than 99 B"));
  EXPECT_THAT(fault_of("{\"text\":\"\",\"a\":" + std::string(600, '[') + std::string(600, ']') + "}"),
              HasSubstr("nested deeper"));
}

TEST(JsonlIndex, RefusesWhatIsNearlyJson) {
  for (const auto* rest : {"1,}",         "tru}",       "truex}",     "01}",       "1.}",    "1e}",   "+1}",
                           ".5}",         "-}",         "nul}",       "[1,]}",     "[1 2]}", "[,1]}", "{\"b\":1,}}",
                           "{\"b\" 1}}",  "{1:2}}",     "\"x\":1}",   "1}}",       "1]",     "[1}",   "",
                           "1",           "'a'}",       "nan}",       "Infinite}", "0x10}",  "1} 2",  "[1}]}",
                           "{\"b\":[}]}", "\"\\u12\"}", "1,,\"c\":2}"}) {
    EXPECT_THAT(fault_of(std::string("{\"text\":\"\",\"a\":") + rest), HasSubstr("it is not JSON")) << rest;
  }
}

TEST(JsonlIndex, TakesInOtherFieldsWhatPythonWrites) {
  for (const auto* other :
       {"NaN", "[-Infinity,Infinity]", R"("\ud800")", R"({"\udc00":"a\ud800\n"})", R"("\ud83dx")"}) {
    const auto value = std::string(other);
    EXPECT_EQ(fault_of("{\"a\":" + value + ",\"text\":\"b\",\"c\":" + value + "}"), "no fault") << other;
    EXPECT_THAT(fault_of("{\"text\":" + value + "}"), HasSubstr("c.jsonl:1: the line cannot be used")) << other;
  }
  EXPECT_THAT(fault_of(R"({"\ud800":1})"), HasSubstr("it has no field \"text\", but"));
}

TEST(JsonlIndex, PassesOverAByteOrderMarkAtTheStartOfAnyLine) {
  const std::string mark = "\xef\xbb\xbf";
  const auto content =
      mark + "{\"text\":\"a\"}\n" + mark + "\n{\"text\":\"bc\"}\n" + mark + "{\"text\":\"d\"}\n" + mark;
  const auto index = index_of(content, {.stride = 1});
  EXPECT_EQ(index.contents.documents, 3);
  EXPECT_EQ(index.contents.tokens, 2 + 3 + 2);
  EXPECT_EQ(TextPlace::unpacked(index.cuts[0]).offset, content.find('a'));
  EXPECT_THAT(fault_of(mark + mark + "{\"text\":\"a\"}"), HasSubstr("begins with two byte order marks"));
  EXPECT_THAT(fault_of(" " + mark + "{\"text\":\"a\"}"), HasSubstr("the line cannot be used"));
  EXPECT_THAT(fault_of(mark), HasSubstr("only white space"));
}

TEST(JsonlIndex, ShowsNothingOfALineThatATerminalWouldObey) {
  EXPECT_THAT(fault_of(R"({"\u001b]0;x\u0007\n":1})"), HasSubstr(R"(but "\x1b]0;x\x07\n")"));
  EXPECT_THAT(fault_of("{\"a\": \x1b[2J}"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(fault_of("{\"text\":\"\\\x1b\"}"), Not(HasSubstr("\x1b")));
}

TEST(JsonlIndex, RefusesALineThatIsTooLongWithoutReadingItsEnd) {
  MemoryFile file("c.jsonl", "{\"text\":\"" + std::string(10'000'000, 'a') + "\"}\n");
  std::uint64_t furthest = 0;
  file.before_read = [&](std::uint64_t offset) { furthest = std::max(furthest, offset); };
  EXPECT_THROW(index_jsonl(file, {}, 1000), SourceError);
  EXPECT_LT(furthest, 1'000'000);
}

TEST(JsonlIndex, HasTheSameLimitForALineWhereverItLies) {
  const auto line = "{\"text\":\"" + std::string(80, 'a') + "\"}";
  for (const auto* end : {"", "\n", "\n{\"text\":\"b\"}\n"}) {
    EXPECT_EQ(fault_of(line + end, line.size()), "no fault");
    EXPECT_THAT(fault_of(line + end, line.size() - 1),
                HasSubstr("it is longer than 90 B, the most that a line may have"));
  }
}

TEST(JsonlIndex, LeavesBadLinesOutWhenAskedAndCountsThem) {
  const std::string content = "bad\n{\"text\":\"\\ud800 and more\"}\n{\"text\":\"ab\"}\n\n{}\n{\"text\":\"cde\"}\nbad";
  const auto index = index_of(content, {.skip_bad = true, .stride = 3});
  EXPECT_EQ(index.contents.documents, 2);
  EXPECT_EQ(index.contents.bad_lines, 4);
  EXPECT_EQ(index.contents.tokens, 3 + 4);
  const auto ab = content.find("ab"), cde = content.find("cde");
  EXPECT_EQ(index.cuts, places({{ab, 0}, {cde, 0}, {cde + 3, 0}}));
  const auto third = content.find("{}");
  EXPECT_THAT(index.skipped, ElementsAre(ByteRange{0, content.find("{\"text\":\"ab")}, ByteRange{third, third + 3},
                                         ByteRange{content.size() - 3, content.size()}));
}

TEST(JsonlIndex, PassesOverALineTooLongToHold) {
  const auto line = "{\"text\":\"" + std::string(1'000'000, 'a') + "\"}\n";
  const auto index = index_jsonl(MemoryFile("c.jsonl", line + "{\"text\":\"b\"}\n" + line), {.skip_bad = true}, 1000);
  EXPECT_EQ(index.contents.documents, 1);
  EXPECT_EQ(index.contents.bad_lines, 2);
  EXPECT_EQ(index.skipped[0].end, line.size());
}

TEST(JsonlIndex, SaysThatThereAreNoDocuments) {
  EXPECT_THAT(fault_of("\n  \n\r\n"), HasSubstr("c.jsonl holds no documents: there is only white space in it"));
  EXPECT_THROW(index_of("x\ny\n", {.skip_bad = true}), SourceError);
}

TEST(JsonlIndex, DependsOnTheBytesAndNotOnHowTheyArrive) {
  std::string content;
  for (int i = 0; i < 3000; ++i)
    content += fmt::format("{{\"id\":{},\"text\":\"{}\"}}\n", i, std::string(i % 700, 'q'));
  MemoryFile file("c.jsonl", content);
  const auto whole = index_jsonl(file, {.stride = 100, .phase = 7});
  file.most_at_once = 777;
  EXPECT_EQ(index_jsonl(file, {.stride = 100, .phase = 7}), whole);
  EXPECT_NE(index_of(content + "{\"text\":\"\"}").contents.digest, whole.contents.digest);
}

TEST(JsonlIndex, TellsHowFarItIs) {
  std::vector<std::uint64_t> done;
  const auto content = "{\"text\":\"" + std::string(1'000'000, 'a') + "\"}";
  index_of(content, {.progress = [&](const IndexProgress& progress) {
             EXPECT_EQ(progress.bytes_in_all, content.size());
             done.push_back(progress.bytes_done);
           }});
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(done.back(), content.size());
}

TEST(JsonlIndex, NoticesAFileThatGrowsMeanwhile) {
  MemoryFile file("c.jsonl", "{\"text\":\"a\"}\n");
  file.before_read = [&](std::uint64_t) { file.now.size += 10; };
  EXPECT_THROW(
      try { index_jsonl(file, {}); } catch (const SourceError& error) {
        EXPECT_THAT(error.what(), HasSubstr("c.jsonl grew from 13 to"));
        throw;
      },
      SourceError);
}

}  // namespace
}  // namespace levada
