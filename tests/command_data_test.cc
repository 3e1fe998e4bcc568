// `levada convert` and `levada inspect`.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "command_run.h"

namespace levada::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Json = nlohmann::json;

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Creates an empty folder of this name.
std::string folder(const std::string& name) {
  auto path = scratch() + "/" + name;
  std::filesystem::create_directory(path);
  return path;
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

Json json_of(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const auto outcome = run(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return Json::parse(outcome.out);
}

/// Returns each rank's digests by field.
std::vector<Json> digests(const std::string& path) {
  const auto report = json_of({"feed", path, "--mesh", "dp=2,tp=2", "--batch", "2", "--seq", "128"});
  std::vector<Json> found;
  for (const auto& rank : report["ranks"]) found.push_back(rank["fields"]);
  return found;
}

/// Makes many megabytes of documents.
std::string large_corpus() {
  std::string lines;
  const auto line = R"({"text": ")" + std::string(4000, 'x') + "\"}\n";
  while (lines.size() < std::size_t{64} << 20) lines += line;
  return write_file("large.jsonl", lines);
}

TEST(CommandConvert, ConvertedTextFeedsTheSameBatches) {
  const auto corpus = make_corpus("same.jsonl", 300);
  const auto out = folder("same") + "/out";
  const auto done = json_of({"convert", corpus, out, "--append-eod"});
  EXPECT_EQ(done["dtype"], "uint16");
  EXPECT_EQ(done["documents"], 300);
  EXPECT_EQ(done["bytes_read"], std::filesystem::file_size(corpus));
  EXPECT_EQ(done["bytes_written"], std::filesystem::file_size(out + ".bin") + std::filesystem::file_size(out + ".idx"));
  const auto wanted = digests(corpus);
  EXPECT_EQ(wanted.size(), 4);
  EXPECT_EQ(digests(out), wanted);
  EXPECT_EQ(digests(out + ".idx"), wanted);
  json_of({"convert", corpus, out + ".bin", "--append-eod", "--dtype", "int32", "--overwrite"});
  EXPECT_EQ(std::filesystem::file_size(out + ".bin"), 4 * done["tokens"].get<std::uint64_t>());
  EXPECT_EQ(digests(out), wanted);
}

TEST(CommandConvert, ReportsItsOutput) {
  const auto outcome =
      run({"convert", make_corpus("said.jsonl", 3), write_file("said.txt", "text"), folder("said") + "/out"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("out.bin"), HasSubstr("4 documents"), HasSubstr("uint16")));
}

TEST(CommandConvert, RejectsUnsuitableInputsAndOutputs) {
  const auto corpus = make_corpus("refused.jsonl", 3);
  const auto place = folder("refused");
  const auto refuse = [&](std::vector<std::string> arguments, int status, const std::string& words) {
    arguments.insert(arguments.begin(), "convert");
    const auto outcome = run(arguments);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, AllOf(StartsWith("levada: "), HasSubstr(words)));
    EXPECT_THAT(names_in(place), IsEmpty());
  };
  const auto out = place + "/out";
  refuse({corpus, out, "--append-eod", "--dtype", "uint8"}, 2,
         "the tokens of bytes go up to 256, and uint8 holds 0 to 255");
  refuse({corpus, out, "--dtype", "float32"}, 2, "--dtype is float32; it must be auto, uint8");
  refuse({corpus, corpus}, 2, "the last argument is the output name");
  refuse({corpus}, 2, "levada convert --help");
  refuse({scratch() + "/none.jsonl", out}, 1, "none.jsonl: No such file");
  refuse({corpus, place + "/none/out"}, 1, "No such file");
  refuse({write_file("bad.jsonl", "{\"text\":\"good\"}\n{\"txt\":1}\n"), out}, 1,
         "bad.jsonl:2: the line cannot be used");
}

TEST(CommandConvert, DoesNotOverwriteUnlessAllowed) {
  const auto corpus = make_corpus("there.jsonl", 3);
  const auto out = folder("there") + "/out";
  EXPECT_EQ(run({"convert", corpus, out}).status, 0);
  const auto before = content(out + ".bin");
  const auto more = make_corpus("more.jsonl", 5);
  const auto refused = run({"convert", more, out});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("already exists"));
  EXPECT_EQ(content(out + ".bin"), before);
  EXPECT_EQ(run({"convert", more, out, "--overwrite"}).status, 0);
  EXPECT_NE(content(out + ".bin"), before);
}

TEST(CommandConvert, NeverLeavesAnUnfinishedFileUnderTheFinalName) {
  const auto corpus = large_corpus();
  const auto place = folder("killed");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGKILL}) {
    for (int milliseconds = 1; milliseconds < 60; milliseconds += 9) {
      Command command({"convert", corpus, place + "/out"});
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      command.signal(signal);
      const auto status = command.wait().status;
      const auto names = names_in(place);
      const auto has = [&](const char* name) { return std::ranges::find(names, name) != names.end(); };
      EXPECT_EQ(has("out.idx"), status == 0);
      // A kill between the two renames leaves a complete .bin without an .idx.
      if (has("out.bin")) {
        EXPECT_GT(std::filesystem::file_size(place + "/out.bin"), std::size_t{60} << 20);
      }
      if (signal != SIGKILL && status != 0) {
        EXPECT_THAT(names, IsEmpty()) << status;
      }
      std::filesystem::remove(place + "/out.idx");
      std::filesystem::remove(place + "/out.bin");
    }
  }
  EXPECT_EQ(run({"convert", corpus, place + "/out"}).status, 0);
  EXPECT_THAT(names_in(place), ElementsAre("out.bin", "out.idx"));
}

TEST(CommandConvert, ReadsAListOfFiles) {
  const auto one = write_file("listed 1.jsonl", "{\"text\":\"one\"}\n"), two = write_file("listed 2.txt", "two");
  const auto list = write_file("list", "\xef\xbb\xbf" + one + "\r\n\n" + two);
  const auto out = folder("listed") + "/out";
  EXPECT_EQ(json_of({"convert", out, "--files-from", list, "--tokenizer", "bytes"})["documents"], 2);
  const auto three = write_file("listed 3.txt", "three");
  const auto second = write_file("second list", three + "\n");
  EXPECT_EQ(json_of({"convert", "--files-from", list, "--files-from", second, out, "--tokenizer", "bytes",
                     "--overwrite"})["documents"],
            3);
  EXPECT_EQ(json_of({"convert", three, out, "--files-from", list, "--overwrite"})["documents"], 3);
  const auto twice = run({"convert", two, out + "2", "--files-from", list});
  EXPECT_EQ(twice.status, 1);
  EXPECT_THAT(twice.err, HasSubstr("listed 2.txt appears twice; name it once"));
  const auto commented = write_file("commented list", "# two files\n  " + one + " \n\t#" + two + "\n" + two + "\r\n");
  EXPECT_EQ(json_of({"convert", out, "--files-from", commented, "--tokenizer", "bytes", "--overwrite"})["documents"],
            2);
  const auto refused =
      run({"convert", out + "2", "--tokenizer", "bytes", "--files-from", write_file("empty list", "\n")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("empty list: it lists no file"));
}

TEST(CommandConvert, RefusesNamesThatNameNoDataSet) {
  const auto text = write_file("named.txt", "text");
  for (const auto& name : {std::string("."), std::string(".."), folder("named") + "/", folder("named too") + "/.."}) {
    const auto outcome = run({"convert", text, name, "--tokenizer", "bytes"});
    EXPECT_EQ(outcome.status, 2) << name;
    EXPECT_THAT(outcome.err, HasSubstr("does not name a data set")) << name;
  }
}

TEST(CommandConvert, CountsAnEmptyFileThatItSkips) {
  const auto empty = write_file("empty.jsonl", ""), text = write_file("full.txt", "text");
  const auto out = folder("with empty") + "/out";
  EXPECT_EQ(run({"convert", empty, text, out, "--tokenizer", "bytes"}).status, 1);
  const auto done = json_of({"convert", empty, text, out, "--tokenizer", "bytes", "--skip-bad"});
  EXPECT_EQ(done["skipped_lines"], 1);
  EXPECT_EQ(done["skipped_places"][0], empty + ":1");
}

TEST(CommandFeed, ReadsAListOfFilesInOwnAndLaunchedRanks) {
  const auto one = make_corpus("fed 1.jsonl", 40), two = make_corpus("fed 2.jsonl", 50);
  const auto list = write_file("list of one", two + "\n");
  const auto digests_of = [](std::vector<std::string> arguments) {
    for (const auto* more : {"--tokenizer", "bytes", "--mesh", "dp=2", "--batch", "2", "--seq", "64"})
      arguments.emplace_back(more);
    return json_of(std::move(arguments))["ranks"][1]["fields"];
  };
  const auto wanted = digests_of({"feed", one, two});
  EXPECT_EQ(digests_of({"feed", one, "--files-from", list}), wanted);
  EXPECT_EQ(digests_of({"feed", one, "--files-from=" + list, "--engine", "inproc"}), wanted);
  const auto fifo = scratch() + "/pipe";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::jthread writer([&] { std::ofstream(fifo) << one << "\n" << two << "\n"; });
  EXPECT_EQ(digests_of({"feed", "--files-from", fifo}), wanted);
  const auto nothing = run({"feed"});
  EXPECT_EQ(nothing.status, 2);
  EXPECT_THAT(nothing.err, HasSubstr("add a PATH or --files-from"));
  const auto in_job =
      run({"feed", "--files-from", "-"},
          {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(in_job.status, 2);
  EXPECT_THAT(in_job.err, HasSubstr("share no standard input: name a file"));
}

TEST(CommandFeed, CountsUnreadFilesOfAFolder) {
  const auto data = folder("web");
  make_corpus("web/a.jsonl", 60);
  for (const auto* name : {"notes.md", "more.md", "LICENSE", "_SUCCESS"}) write_file("web/" + std::string(name), "x");
  for (const auto* engine : {"shm", "inproc"}) {
    const auto report = json_of({"feed", data, "--tokenizer", "bytes", "--mesh", "dp=2", "--batch", "1", "--seq", "64",
                                 "--split", "1,1", "--engine", engine});
    EXPECT_EQ(report["files"], 1);
    EXPECT_EQ(report["files_left_out"], (Json{{"", 1}, {".md", 2}}));
    EXPECT_EQ(report["documents"], 30);
    EXPECT_EQ(report["stored_documents"], 60);
  }
  const auto text =
      run({"feed", data, "--tokenizer", "bytes", "--mesh", "dp=2", "--batch", "1", "--seq", "64", "--split", "1,1"})
          .out;
  EXPECT_THAT(text, HasSubstr("; 30 of 60 documents; 3 files are not read: 1 without an extension, 2 .md"));
}

TEST(CommandFeed, ReadsMoreFilesThanItMayOpen) {
  const auto texts = folder("texts"), sets = folder("sets");
  for (int i = 0; i < 1500; ++i) {
    std::ofstream(fmt::format("{}/{:04}.txt", texts, i)) << fmt::format("{:015}", i);
  }
  const auto one = write_file("set.txt", "0123456789abcdef");
  ASSERT_EQ(run({"convert", one, sets + "/0", "--append-eod"}).status, 0);
  for (int i = 1; i < 4000; ++i) {
    for (const auto* extension : {".bin", ".idx"}) {
      std::filesystem::copy_file(sets + "/0" + extension, fmt::format("{}/{}{}", sets, i, extension));
    }
  }
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{256, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  for (const auto& [path, samples] : {std::pair(texts, 1499), std::pair(sets, 4249)}) {
    const auto report = json_of(
        {"feed", path, "--tokenizer", "bytes", "--mesh", "dp=2", "--readers", "dp", "--seq", "16", "--batch", "1"});
    EXPECT_EQ(report["samples"], samples / 2 * 2) << path;
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST(CommandFeed, EscapesControlCharactersOfTheData) {
  const auto place = folder("hostile");
  const auto name = place + "/a\x1b[2J\n.jsonl";
  std::ofstream(name) << R"({"\u001b]0;x\u0007":1})"
                      << "\n";
  const auto bad = run({"feed", place, "--tokenizer", "bytes"});
  EXPECT_EQ(bad.status, 1);
  EXPECT_THAT(bad.err, AllOf(HasSubstr(R"(a\x1b[2J\n.jsonl:1: the line)"), HasSubstr(R"("\x1b]0;x\x07")")));
  EXPECT_EQ(std::ranges::count(bad.err, '\n'), 1);
  EXPECT_EQ(bad.err.find('\x1b'), bad.err.npos);
  const auto text = write_file("hostile.txt", std::string(100, 'x'));
  const auto layout = write_file("hostile_layout.json", R"({"fields": {"a\nb\u001b[2J": ["nonsense"]}})");
  const std::vector<std::vector<std::string>> refused = {{"feed", text, "--mesh", "dp\x1b[2J\n=2"},
                                                         {"feed", text, "--mesh", "dp=\n2"},
                                                         {"feed", text, "--mesh", "dp=2", "--data-axes", "d\np"},
                                                         {"feed", text, "--mesh", "dp=2", "--layout", layout}};
  for (const auto& arguments : refused) {
    const auto result = run(arguments);
    EXPECT_NE(result.status, 0);
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_EQ(result.err.find('\x1b'), result.err.npos);
  }
  const auto mix =
      write_file("hostile.json", R"({"sources": [{"path": "hostile.txt", "weight": 1, "name": "\u001b[2Jred"},
                                                             {"path": "hostile.txt", "weight": 1}]})");
  const auto fed = run({"feed", mix, "--tokenizer", "bytes", "--batch", "1", "--seq", "16"});
  EXPECT_EQ(fed.status, 0) << fed.err;
  EXPECT_THAT(fed.out, HasSubstr("\\x1b[2Jred"));
  EXPECT_EQ(fed.out.find('\x1b'), fed.out.npos);
}

/// Limits the size of files that this process and its children write, until it is destroyed.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(CommandConvert, LeavesNoFileAfterAFileSizeLimit) {
  const auto corpus = make_corpus("limited.jsonl", 3000);
  const auto place = folder("limited");
  const FileSizeLimit limit(100'000);
  const auto outcome = run({"convert", corpus, place + "/out"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write " + place + "/out.bin: File too large"));
  EXPECT_THAT(names_in(place), IsEmpty());
}

TEST(CommandInspect, DescribesAFileWhoseNameIsNotUtf8) {
  const std::string path = write_file("a\xff.jsonl", "{\"text\": \"one\"}\n");
  EXPECT_THAT(json_of({"inspect", path})["paths"][0].get<std::string>(), HasSubstr("a\uFFFD.jsonl"));
  EXPECT_EQ(json_of({"feed", path, "--batch", "1", "--seq", "2"})["end"], "exhausted");
}

TEST(CommandInspect, SummarizesText) {
  const auto corpus =
      write_file("counted.jsonl", "{\"text\":\"caf\\u00e9\"}\nbad\n{\"text\":\"\\u001b[31mred\\nline\"}\n");
  EXPECT_EQ(run({"inspect", corpus}).status, 1);
  const auto json = json_of({"inspect", corpus, "--skip-bad", "--sample", "1"});
  EXPECT_EQ(json["format"], "text");
  EXPECT_EQ(json["dtype"], "uint16");
  EXPECT_EQ(json["documents"], 2);
  EXPECT_EQ(json["sequences"], 2);
  EXPECT_EQ(json["tokens"], 5 + 13 + 2);
  EXPECT_EQ(json["bytes"], std::filesystem::file_size(corpus));
  EXPECT_EQ(json["skipped_lines"], 1);
  EXPECT_EQ(json["skipped_places"].size(), 1);
  EXPECT_EQ(json["sample"]["text"], "\x1b[31mred\nline");
  EXPECT_EQ(json["lengths"]["longest"], 14);
  const auto text = run({"inspect", corpus, "--skip-bad", "--sample", "1"}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("documents  2\n"), HasSubstr("│ ·[31mred\n  │ line\n"), HasSubstr("█")));
  EXPECT_EQ(text.find('\x1b'), text.npos);
  const auto refused = run({"inspect", corpus, "--skip-bad", "--sample", "2"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("document 2 does not exist"));
}

TEST(CommandInspect, SummarizesABin) {
  const auto out = folder("inspected") + "/out";
  const auto corpus = write_file("inspected.jsonl", "{\"text\":\"one\"}\n{\"text\":\"\"}\n{\"text\":\"three\"}\n");
  run({"convert", corpus, out, "--append-eod"});
  const auto json = json_of({"inspect", out, "--sample", "2"});
  EXPECT_EQ(json["format"], "megatron");
  EXPECT_EQ(json["dtype"], "uint16");
  EXPECT_EQ(json["documents"], 3);
  EXPECT_EQ(json["sequences"], 2) << "one for each document that is not empty";
  EXPECT_EQ(json["tokens"], 10);
  EXPECT_EQ(json["bytes"], std::filesystem::file_size(out + ".bin") + std::filesystem::file_size(out + ".idx"));
  EXPECT_EQ(json["sample"]["text"], "three");
}

/// Writes one document of `numbers` by hand, in Megatron-LM's data type `code`.
template <typename T>
std::string write_numbers(const std::string& name, char code, const std::vector<T>& numbers) {
  const auto bytes = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof(value)); };
  const auto count = static_cast<std::int32_t>(numbers.size());
  std::string bin;
  for (const auto number : numbers) bin += bytes(number);
  write_file(name + ".bin", bin);
  const auto index =
      write_file(name + ".idx", std::string("MMIDIDX\0\0", 9) + bytes(std::int64_t{1}) + code + bytes(std::int64_t{1}) +
                                    bytes(std::int64_t{2}) + bytes(count) + bytes(std::int64_t{0}) +
                                    bytes(std::int64_t{0}) + bytes(std::int64_t{1}));
  return index.substr(0, index.size() - 4);
}

TEST(CommandInspect, ShowsTokensThatAreNotTextAsNumbers) {
  const auto floats = write_numbers<float>("floats", 7, {0.5F, -2});
  const auto json = json_of({"inspect", floats});
  EXPECT_EQ(json["dtype"], "float32");
  EXPECT_EQ(json["sample"]["token_ids"], Json({0.5, -2.0}));
  const auto fed = run({"feed", floats, "--batch", "1", "--seq", "1"});
  EXPECT_EQ(fed.status, 1);
  EXPECT_THAT(fed.err, HasSubstr("holds float32 numbers, and tokens are integers"));
  const auto negative = write_numbers<std::int32_t>("negative", 4, {50000, 7, -1});
  EXPECT_EQ(json_of({"inspect", negative})["sample"]["token_ids"], Json({50000, 7, -1}));
  EXPECT_THAT(run({"inspect", negative}).out, HasSubstr("│ 50000 7 -1\n"));
  const auto refused = run({"feed", negative, "--batch", "1", "--seq", "2"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("token 2 is negative"));
}

TEST(CommandInspect, ErrorsNameTheCause) {
  const auto path = write_numbers<std::int32_t>("wrong", 4, {1, 2, 3});
  write_file("wrong.bin", "1234567");
  for (const char* command : {"inspect", "feed"}) {
    const auto outcome = run({command, path});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("wrong.bin has only 7 bytes"));
  }
  EXPECT_EQ(run({"inspect", write_file("wrong.csv", "a,b")}).status, 2);
  EXPECT_THAT(run({"inspect", scratch() + "/none"}).err, HasSubstr("none: No such file"));
}

}  // namespace
}  // namespace levada::test
