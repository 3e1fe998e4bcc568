#include "levada/tokens/text_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "levada/base/fault_testing.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/tokens/compression_testing.h"
#include "levada/tokens/line_reader.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string mark = "\xef\xbb\xbf";

struct Documents {
  std::vector<std::string> texts;
  std::int64_t bad_lines = 0;

  bool operator==(const Documents&) const = default;
};

Documents read_all(std::shared_ptr<const File> file, const TextOptions& options = {}) {
  const auto name = file->path();
  const auto reader = read_text(std::move(file), name, options);
  Documents documents;
  Texts texts;
  while (reader->read(texts)) {
    EXPECT_GT(texts.size(), 0);
    for (std::size_t i = 0; i < texts.size(); ++i) documents.texts.emplace_back(texts[i]);
  }
  documents.bad_lines = reader->bad_lines().count;
  return documents;
}

Documents read_all(const std::string& path, const std::string& content, const TextOptions& options = {}) {
  return read_all(std::make_shared<MemoryFile>(path, content), options);
}

std::vector<std::string> texts_of(const std::string& jsonl) {
  return read_all("c.jsonl", jsonl).texts;
}

std::string fault_in(const std::string& path, const std::string& content) {
  return fault_of([&] { read_all(path, content); });
}

std::string fault_in(const std::string& jsonl) {
  return fault_in("c.jsonl", jsonl);
}

/// Some megabytes of distinct documents; one is longer than a read, one is empty.
const Documents& many_documents() {
  static const Documents documents = [] {
    Documents made;
    std::mt19937 random(1);
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      for (auto words = random() % 100; words > 0; --words) text += fmt::format("w\xc3\xa9rd{} ", random() % 1000);
      made.texts.push_back(text);
    }
    made.texts.push_back(std::string(2'000'000, 'x'));
    made.texts.emplace_back();
    return made;
  }();
  return documents;
}

std::string lines_of(const Documents& documents) {
  std::string lines;
  for (const auto& text : documents.texts) lines += fmt::format("{{\"id\":[1],\"text\":\"{}\"}}\n", text);
  return lines;
}

TEST(TextReader, ReturnsTheSameDocumentsForAnyReadSizes) {
  const auto lines = lines_of(many_documents());
  EXPECT_EQ(read_all("c.jsonl", lines), many_documents());
  const auto file = std::make_shared<MemoryFile>("c.jsonl", lines);
  file->max_at_once = 7777;
  EXPECT_EQ(read_all(file), many_documents());
}

TEST(TextReader, ReturnsTheSameForCompressedAndPlainFiles) {
  const auto lines = lines_of(many_documents());
  const auto half = lines.find('\n', lines.size() / 4) + 1;
  const auto first = lines.substr(0, half), second = lines.substr(half);
  for (const auto& [path, content] : {std::pair{"c.jsonl.gz", gzip(lines)},
                                      {"c.jsonl.zst", zstd(lines)},
                                      {"c.jsonl.gz", gzip(first) + gzip("") + gzip(second)},
                                      {"c.jsonl.zst", zstd(first) + zstd("") + zstd(second)}}) {
    for (const std::size_t max_at_once : {std::size_t{997}, SIZE_MAX}) {
      const auto file = std::make_shared<MemoryFile>(path, content);
      file->max_at_once = max_at_once;
      EXPECT_EQ(read_all(file), many_documents()) << path << " by " << max_at_once;
    }
  }
  EXPECT_THAT(read_all("c.txt.gz", gzip("a\n\xc3\xa9")).texts, ElementsAre("a\n\xc3\xa9"));
  EXPECT_THAT(read_all("c.txt.zst", zstd(mark + "a")).texts, ElementsAre("a"));
}

TEST(TextReader, NamesATruncatedCompressedFile) {
  const auto line = lines_of({{"hello", "you"}});
  for (const auto& [path, content] : {std::pair{"c.jsonl.gz", gzip(line)}, {"c.jsonl.zst", zstd(line)}}) {
    for (std::size_t size = 1; size < content.size(); ++size) {
      EXPECT_EQ(fault_in(path, content.substr(0, size)),
                fmt::format("SourceError: {} ends too early: it has been cut off, so fetch it again", path));
    }
    EXPECT_THAT(fault_in(path, content + content.substr(0, content.size() - 1)), HasSubstr("ends too early"));
    EXPECT_EQ(fault_in(path, ""), fmt::format("SourceError: {} is empty: leave it out", path));
  }
}

TEST(TextReader, SkipsZerosAfterGzipMembers) {
  const std::string first = "{\"text\":\"a\"}\n", second = "{\"text\":\"b\"}\n", zeros(300'000, '\0');
  EXPECT_THAT(read_all("c.jsonl.gz", gzip(first) + zeros).texts, ElementsAre("a"));
  EXPECT_THAT(read_all("c.jsonl.gz", gzip(first) + zeros + gzip(second) + zeros).texts, ElementsAre("a", "b"));
  EXPECT_THAT(fault_in("c.jsonl.gz", zeros + gzip(first)), HasSubstr("is damaged near byte"));
  EXPECT_THAT(fault_in("c.jsonl.gz", gzip(first) + zeros + "x"), HasSubstr("c.jsonl.gz ends too early"));
}

TEST(TextReader, NamesADamagedCompressedFile) {
  const auto line = lines_of(many_documents()).substr(0, 1'000'000) + "\"}";
  for (const auto& [path, whole] : {std::pair{"c.jsonl.gz", gzip(line)}, {"c.jsonl.zst", zstd(line)}}) {
    EXPECT_THAT(fault_in(path, line), AllOf(HasSubstr(fmt::format("SourceError: {} is damaged near byte ", path)),
                                            HasSubstr("; rename it if it is not compressed, or fetch it again")));
    EXPECT_THAT(fault_in(path, whole + "more, which is none"), HasSubstr("; fetch it again"));
    for (const auto at : {whole.size() / 3, whole.size() / 2, whole.size() - 3}) {
      auto damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      EXPECT_THAT(fault_in(path, damaged), HasSubstr(fmt::format("SourceError: {} is damaged near byte ", path))) << at;
    }
  }
}

TEST(TextReader, ReportsProgressInStoredBytes) {
  const auto lines = lines_of(many_documents());
  for (const auto& [path, content] : {std::pair{"c.jsonl", lines}, {"c.jsonl.gz", gzip(lines)}}) {
    const auto reader = read_text(std::make_shared<MemoryFile>(path, content), path, {});
    std::uint64_t before = 0;
    for (Texts texts; reader->read(texts);) {
      EXPECT_GE(reader->stored_bytes(), before);
      before = reader->stored_bytes();
    }
    EXPECT_EQ(reader->stored_bytes(), content.size());
  }
}

TEST(TextReader, FindsTheTextAnywhereInTheObject) {
  EXPECT_THAT(texts_of("\r\n \t\r\n {\"a\" : {\"text\":[1,{}]}, \"te\\u0078t\" :\t\"x\\u00e9\\ud83d\\ude00\\n\" , "
                       "\"b\":[null,true,-1.5e9,\"\\u00e9\"]} \r\n\n{\"text\":\"\"}"),
              ElementsAre("x\u00e9\U0001f600\n", ""));
  EXPECT_THAT(read_all("c.jsonl", "{\"text\":1,\"body\":\"b\"}", {.text_field = "body"}).texts, ElementsAre("b"));
}

TEST(TextReader, ReadsNumbersOfAnyMagnitude) {
  EXPECT_THAT(texts_of("{\"id\":123456789012345678901234567890,\"x\":1e999,\"y\":-0,\"text\":\"a\"}"),
              ElementsAre("a"));
}

TEST(TextReader, ErrorsNameFileLineAndCause) {
  EXPECT_THAT(fault_in("{\"text\":\"a\"}\n\n{\"text\":\"a\"\n"),
              HasSubstr("SourceError: c.jsonl:3: the line cannot be used: "));
  EXPECT_THAT(fault_in("hello"), HasSubstr("it is not JSON"));
  EXPECT_THAT(fault_in("hello"), HasSubstr("; fix the file, or skip such lines (skip_bad=True, --skip-bad)"));
  EXPECT_THAT(fault_in("[1]"), HasSubstr("it is not a JSON object"));
  EXPECT_THAT(fault_in("\"text\""), HasSubstr("it is not a JSON object"));
  EXPECT_THAT(fault_in("{\"text\":\"a\xff\"}"), HasSubstr("it is not UTF-8"));
  EXPECT_THAT(fault_in("{\"text\":\"a\tb\"}"), HasSubstr("a string contains a control character"));
  EXPECT_THAT(fault_in("{\"text\":\"a}"), HasSubstr("a string has no end"));
  EXPECT_THAT(fault_in("{\"text\":\"\\ud800\"}"), HasSubstr("it contains an unpaired surrogate"));
  EXPECT_THAT(fault_in("{\"text\":\"\\q\"}"), HasSubstr("an escape is wrong, at \\q"));
  EXPECT_THAT(fault_in("{\"text\":\"\",\"a\":\"\\q\"}"), HasSubstr("an escape is wrong"));
  EXPECT_THAT(
      fault_in("{\"title\":\"x\",\"id\":1}"),
      HasSubstr("it has no field \"text\", but \"title\", \"id\"; name another field (text_field=, --text-field), or "
                "skip such lines (skip_bad=True, --skip-bad)"));
  EXPECT_THAT(fault_in("{}"), HasSubstr("it has no field \"text\", nor any other"));
  EXPECT_THAT(fault_in("{\"text\":5}"), HasSubstr("its field \"text\" is not a string"));
  EXPECT_THAT(fault_in("{\"text\":null}"), HasSubstr("is not a string"));
  EXPECT_THAT(fault_in("{\"text\":\"a\",\"text\":\"b\"}"), HasSubstr("it has two fields \"text\""));
  EXPECT_THAT(fault_in("{\"text\":\"a\"} {\"text\":\"b\"}"), HasSubstr("it is not JSON"));
  EXPECT_THAT(fault_in("{\"text\":\"\",\"a\":" + std::string(600, '[') + std::string(600, ']') + "}"),
              HasSubstr("nested deeper"));
}

TEST(TextReader, RejectsAlmostJson) {
  for (const auto* rest : {"1,}",         "tru}",       "truex}",     "01}",       "1.}",    "1e}",   "+1}",
                           ".5}",         "-}",         "nul}",       "[1,]}",     "[1 2]}", "[,1]}", "{\"b\":1,}}",
                           "{\"b\" 1}}",  "{1:2}}",     "\"x\":1}",   "1}}",       "1]",     "[1}",   "",
                           "1",           "'a'}",       "nan}",       "Infinite}", "0x10}",  "1} 2",  "[1}]}",
                           "{\"b\":[}]}", "\"\\u12\"}", "1,,\"c\":2}"}) {
    EXPECT_THAT(fault_in(std::string("{\"text\":\"\",\"a\":") + rest), HasSubstr("it is not JSON")) << rest;
  }
}

TEST(TextReader, ReadsNestedFieldsByDottedNames) {
  const auto read_field = [](const std::string& line, const std::string& field) {
    return read_all("c.jsonl", line + "\n", {.text_field = field}).texts;
  };
  const auto fault_of_field = [&](const std::string& line, const std::string& field) {
    return fault_of([&] { read_field(line, field); });
  };
  EXPECT_THAT(read_field(R"({"doc":{"id":1,"text":"a"},"text":"b"})", "doc.text"), ElementsAre("a"));
  EXPECT_THAT(read_field(R"({"doc":7,"doc.text":"a"})", "doc.text"), ElementsAre("a"));
  EXPECT_THAT(read_field(R"({"doc":NaN,"doc.text":"a"})", "doc.text"), ElementsAre("a"));
  EXPECT_THAT(read_field(R"({"a":{"b":{"c":[1],"d.e":"x"}},"z":{}})", "a.b.d.e"), ElementsAre("x"));
  EXPECT_THAT(read_field(R"({"\u0061":{"b\n":"x"}})", "a.b\n"), ElementsAre("x"));
  EXPECT_THAT(fault_of_field(R"({"doc":{"text":"a"},"doc.text":"b"})", "doc.text"),
              HasSubstr("two fields \"doc.text\""));
  EXPECT_THAT(fault_of_field(R"({"doc":{"text":5}})", "doc.text"), HasSubstr("its field \"doc.text\" is not a string"));
  EXPECT_THAT(fault_of_field(R"({"doc":{"other":"a"}})", "doc.text"),
              HasSubstr("it has no field \"doc.text\", but \"doc\""));
  EXPECT_THAT(fault_of_field(R"({"doc":{"text":"a",}})", "doc.text"), HasSubstr("it is not JSON"));
  EXPECT_THAT(fault_of_field(R"({"doc":"text"})", "doc."), HasSubstr("it has no field"));
}

TEST(TextReader, AcceptsPythonsJsonExtensionsInOtherFields) {
  for (const auto* other :
       {"NaN", "[-Infinity,Infinity]", R"("\ud800")", R"({"\udc00":"a\ud800\n"})", R"("\ud83dx")"}) {
    const auto value = std::string(other);
    EXPECT_THAT(texts_of("{\"a\":" + value + ",\"text\":\"b\",\"c\":" + value + "}"), ElementsAre("b")) << other;
    EXPECT_THAT(fault_in("{\"text\":" + value + "}"), HasSubstr("c.jsonl:1: the line cannot be used")) << other;
  }
  EXPECT_THAT(fault_in(R"({"\ud800":1})"), HasSubstr("it has no field \"text\", but"));
}

TEST(TextReader, SkipsAByteOrderMarkAtTheStartOfTheFileAndOfAnyLine) {
  EXPECT_THAT(
      texts_of(mark + "{\"text\":\"a\"}\n" + mark + "\n{\"text\":\"bc\"}\n" + mark + "{\"text\":\"d\"}\n" + mark),
      ElementsAre("a", "bc", "d"));
  EXPECT_THAT(fault_in("{\"text\":\"a\"}\n" + mark + mark + "{\"text\":\"a\"}"),
              HasSubstr("c.jsonl:2: the line cannot be used: it is not JSON: it begins with two byte order marks"));
  EXPECT_THAT(fault_in(" " + mark + "{\"text\":\"a\"}"), HasSubstr("the line cannot be used"));
  EXPECT_THAT(fault_in(mark), HasSubstr("only white space"));
}

TEST(TextReader, EscapesControlCharactersInErrors) {
  EXPECT_THAT(fault_in(R"({"\u001b]0;x\u0007\n":1})"), HasSubstr(R"(but "\x1b]0;x\x07\n")"));
  EXPECT_THAT(fault_in("{\"a\": \x1b[2J}"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(fault_in("{\"text\":\"\\\x1b\"}"), Not(HasSubstr("\x1b")));
}

TEST(TextReader, SkipsAndCountsBadLinesIfRequested) {
  const std::string content =
      "bad\n{\"text\":\"\\ud800 and more\"}\n{\"text\":\"ab\"}\r\n\n{}\n{\"text\":\"cde\"}\nbad";
  EXPECT_EQ(read_all("c.jsonl", content, {.skip_bad = true}), (Documents{{"ab", "cde"}, 4}));
  EXPECT_EQ(fault_of([] { read_all("c.jsonl", "x\ny\n", {.skip_bad = true}); }),
            "SourceError: c.jsonl holds no documents: all of its 2 lines are bad; fix the file or leave it out");
}

TEST(TextReader, SkipsOrNamesALineThatIsTooLong) {
  const auto line = "{\"text\":\"" + std::string(max_line_bytes, 'a') + "\"}\n";
  const auto content = "{\"text\":\"b\"}\n" + line + "{\"text\":\"c\"}\n";
  EXPECT_EQ(read_all("c.jsonl", content, {.skip_bad = true}), (Documents{{"b", "c"}, 1}));
  EXPECT_EQ(fault_in(content),
            "SourceError: c.jsonl:2: the line cannot be used: it is longer than 64.0 MiB, the maximum of a line; cut "
            "it into several lines, or skip such lines (skip_bad=True, --skip-bad)");
}

TEST(TextReader, RejectsAFileWithoutDocuments) {
  EXPECT_THAT(fault_in("\n  \n\r\n"), HasSubstr("c.jsonl holds no documents: it has only white space"));
  EXPECT_THAT(fault_in("c.jsonl.gz", gzip("")), HasSubstr("c.jsonl.gz holds no documents"));
  for (const auto* path : {"c.jsonl", "c.txt"})
    EXPECT_EQ(fault_in(path, ""), fmt::format("SourceError: {} is empty: leave it out", path));
}

TEST(TextReader, PlaceNamesTheFirstLineOfTheLastRead) {
  const std::string long_line = "{\"text\":\"" + std::string(100'000, 'a') + "\"}\n";
  const auto reader = read_text(std::make_shared<MemoryFile>("c.jsonl", "\nbad\n" + long_line + "\n" + long_line),
                                "c.jsonl", TextOptions{.skip_bad = true});
  Texts texts;
  for (const int line : {3, 5}) {
    ASSERT_TRUE(reader->read(texts));
    EXPECT_EQ(reader->place(), fmt::format("c.jsonl, from line {} on", line));
  }
  EXPECT_EQ(read_text(std::make_shared<MemoryFile>("c.txt", "a"), "c.txt", {})->place(), "c.txt");
}

/// Returns options with this much memory available.
TextOptions with_memory(std::uint64_t bytes) {
  return {.memory = std::make_shared<MemoryClaims>([bytes] { return MemoryLimits{bytes, bytes}; })};
}

TEST(TextReader, RejectsATextWhoseTokensDoNotFitInMemory) {
  const auto small_file_of_much = std::make_shared<MemoryFile>("c.txt.gz", gzip(std::string(32 << 20, '\n')));
  EXPECT_EQ(read_all(small_file_of_much, with_memory(1 << 30)).texts.size(), 1);
  EXPECT_THAT(fault_of([&] { read_all(small_file_of_much, with_memory(64 << 20)); }),
              AllOf(HasSubstr("InvalidArgument: tokenizing c.txt.gz takes about"),
                    HasSubstr("or cut the text into documents, one per line of a .jsonl")));
}

TEST(TextReader, RejectsAWindowThatDoesNotFitInMemory) {
  const auto large_window = std::make_shared<MemoryFile>("c.jsonl.zst", zstd_stream(lines_of(many_documents()), 27));
  EXPECT_GT(read_all(large_window, with_memory(1 << 30)).texts.size(), 1);
  EXPECT_THAT(fault_of([&] { read_all(large_window, with_memory(64 << 20)); }),
              HasSubstr("InvalidArgument: the window of c.jsonl.zst takes about"));
}

TEST(TextReader, DetectsAFileThatGrowsDuringReading) {
  const std::string text = "{\"text\":\"a\"}\n";
  for (const std::string path : {"c.jsonl", "c.jsonl.gz"}) {
    const auto content = path.ends_with(".gz") ? gzip(text) : text;
    const auto file = std::make_shared<MemoryFile>(path, content);
    file->before_read = [&](std::uint64_t) { file->now.size = content.size() + 10; };
    EXPECT_THAT(fault_of([&] { read_all(file); }),
                HasSubstr(fmt::format("{} grew from {} to {}", path, content.size(), content.size() + 10)));
  }
}

TEST(TextReader, ReadsATextFileAsOneDocument) {
  const auto text = std::string("a\0\r\n", 4);
  EXPECT_THAT(read_all("c.txt", text).texts, ElementsAre(text));
  EXPECT_THAT(read_all("c.txt", mark + "a").texts, ElementsAre("a"));
  for (const auto* tiny : {"a", "ab", "\xc3\xa9"}) EXPECT_THAT(read_all("c.txt", tiny).texts, ElementsAre(tiny));
}

TEST(TextReader, NamesTheFirstByteThatIsNotUtf8) {
  EXPECT_EQ(fault_in("c.txt", "ab\xff"),
            "SourceError: c.txt is not UTF-8 at byte 2: convert it to UTF-8, or leave it out");
  EXPECT_THAT(fault_in("c.txt", "ab\xe2\x82"), HasSubstr("at byte 2"));
  // Characters and faults at every position around the boundary of two pieces.
  constexpr std::size_t border = std::size_t{256} << 10;
  for (std::size_t at = border - 8; at < border + 8; ++at) {
    const auto good = std::string(at, 'a') + "\U0001f600" + std::string(1000, 'b');
    EXPECT_EQ(fault_in("c.txt", good), "no fault") << at;
    auto bad = good;
    bad[at + 2] = 'x';
    EXPECT_THAT(fault_in("c.txt", bad), HasSubstr("at byte " + std::to_string(at))) << at;
  }
}

TEST(TextReader, NamesAFileOfAnotherFormThanItsName) {
  const auto line = lines_of({{"hello", "you"}});
  for (const std::string path : {"c.jsonl", "c.txt"}) {
    EXPECT_EQ(fault_in(path, gzip(line)),
              fmt::format("SourceError: {} is compressed with gzip: end its name with .gz", path));
    EXPECT_EQ(fault_in(path, zstd(line)),
              fmt::format("SourceError: {} is compressed with zstd: end its name with .zst", path));
    for (const auto* text : {"\xff\xfe{\0}\0", "\xfe\xff\0{\0}"}) {
      EXPECT_EQ(fault_in(path, std::string(text, 6)),
                fmt::format("SourceError: {} is UTF-16: convert it to UTF-8", path));
    }
  }
}

TEST(TextReader, IsSelectedByTheFileExtension) {
  for (const auto* path :
       {"a.jsonl", "a.txt", "d/a.jsonl.gz", "a.txt.zst", "c4.json.gz", "a.json", "a.ndjson", "a.ndjson.zst"})
    EXPECT_TRUE(is_text(path)) << path;
  for (const auto* path : {"https://h/a.jsonl.gz?sig=b", "https://h/get?file=a.txt"})
    EXPECT_TRUE(is_text(path)) << path;
  for (const auto* path : {"a.txt?sig=b", "https://h/a.bin?sig=b"}) EXPECT_FALSE(is_text(path)) << path;
  for (const auto* path : {"a.bin", "a.gz", "a.jsonl.xz", "a.jsonl.gz.gz"}) EXPECT_FALSE(is_text(path)) << path;
  struct Opened {};
  const std::vector<TextFormat> formats = {
      {".rows", [](const std::shared_ptr<const File>& file, const TextOptions&) -> std::unique_ptr<TextReader> {
         EXPECT_EQ(file->path(), "a.rows");
         throw Opened();
       }}};
  EXPECT_TRUE(is_text("a.rows", formats));
  EXPECT_THROW(read_text("a.rows", {}, formats, open_from({{"a.rows", ""}})), Opened);
}

/// Returns a few bytes at a time.
class FewBytes final : public ByteStream {
 public:
  FewBytes(std::string bytes, std::size_t at_once) : bytes_(std::move(bytes)), at_once_(at_once) {}
  std::size_t read(std::span<char> into) override {
    const auto count = std::min({at_once_, into.size(), bytes_.size() - done});
    std::copy_n(bytes_.data() + done, count, into.data());
    done += count;
    return count;
  }
  std::uint64_t stored_bytes() const override { return done; }

  std::size_t done = 0;

 private:
  std::string bytes_;
  std::size_t at_once_;
};

TEST(LineReader, TheLineLimitDoesNotDependOnThePosition) {
  const std::string line(90, 'a');
  for (const std::string end : {"", "\n", "\nb\n"}) {
    for (const std::size_t at_once : {std::size_t{1}, std::size_t{13}, SIZE_MAX}) {
      for (const std::uint64_t limit : {line.size(), line.size() - 1}) {
        FewBytes bytes(line + end, at_once);
        LineReader lines(bytes, limit, 0);
        const auto first = lines.next();
        EXPECT_EQ(first->too_long, limit < line.size());
        EXPECT_EQ(first->text, first->too_long ? "" : line);
        const auto second = lines.next();
        ASSERT_EQ(second.has_value(), end.size() > 1);
        if (!second) continue;
        EXPECT_EQ(second->text, "b");
        EXPECT_EQ(second->number, 2);
        EXPECT_FALSE(lines.next());
      }
    }
  }
}

TEST(LineReader, KeepsThePaddingAfterEachLineReadable) {
  std::string content;
  for (std::size_t i = 0; i < 2000; ++i) content += std::string(i, static_cast<char>('a' + i % 26)) + "\n";
  FewBytes bytes(content, 4099);
  LineReader lines(bytes, content.size(), 64);
  std::size_t i = 0;
  for (auto line = lines.next(); line; line = lines.next(), ++i) {
    EXPECT_EQ(line->text, std::string(i, static_cast<char>('a' + i % 26)));
    volatile char last = *(line->text.data() + line->text.size() + 63);  // Sanitizers detect a read past the end.
    static_cast<void>(last);
  }
  EXPECT_EQ(i, 2000);
}

TEST(TextReader, ReturnsTheJsonOfChats) {
  const auto read = [](const std::string& content, TextOptions options = {.chats = true}) {
    return read_all(std::make_shared<MemoryFile>("chats.jsonl", content), options);
  };
  const std::string chat =
      R"([{"role": "user", "content": "a \"b\"\n"}, {"role":"assistant","content":[1, {"x":null}]}])";
  for (const std::string& line :
       {"{\"messages\":" + chat + "}", "{\"id\":1, \"messages\" : " + chat + " , \"text\":\"no\"}\n",
        "\xef\xbb\xbf {\"messages\":" + chat + " }\n\n"}) {
    EXPECT_THAT(read(line).texts, ElementsAre(chat)) << line;
  }
  EXPECT_THAT(read("{\"turns\":[]}", {.text_field = "turns", .chats = true}).texts, ElementsAre("[]"));
  const auto fault = [&](const std::string& line) { return fault_of([&] { read(line); }); };
  EXPECT_THAT(fault(R"({"messages":"hello"})"),
              HasSubstr("chats.jsonl:1: the line cannot be used: its field \"messages\" is not a list"));
  EXPECT_THAT(fault(R"({"text":"hello"})"), HasSubstr("it has no field \"messages\", but \"text\""));
  EXPECT_THAT(fault(R"({"messages":[1,}]})"), HasSubstr("it is not JSON"));
  EXPECT_THAT(fault(R"({"messages":[nul]})"), HasSubstr("\"nul\" is not a value"));
  EXPECT_THAT(fault(R"({"messages":[], "messages":[]})"), HasSubstr("it has two fields \"messages\""));
  EXPECT_EQ(read("{\"messages\":5}\n{\"messages\":[]}\n", {.skip_bad = true, .chats = true}).bad_lines, 1);
  EXPECT_THAT(fault_of([] { read_all(std::make_shared<MemoryFile>("a.txt", "hello"), {.chats = true}); }),
              HasSubstr("a.txt is a .txt, which holds no chats"));
}

}  // namespace
}  // namespace levada
