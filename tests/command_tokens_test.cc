// Text as tokens: `levada cache`, tokenizers, compressed texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "command_run.h"
#include "levada/sources/megatron_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

Json json_of(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const auto outcome = run(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return Json::parse(outcome.out);
}

void expect_refusal(const std::vector<std::string>& arguments, int status, const std::string& words,
                    const Variables& variables = {}) {
  const auto outcome = run(arguments, variables);
  EXPECT_EQ(outcome.status, status) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, AllOf(StartsWith("levada: "), HasSubstr(words)));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

std::vector<std::string> feed(const std::string& path, std::vector<std::string> more) {
  more.insert(more.begin(), {"feed", path, "--batch", "2", "--seq", "64"});
  return more;
}

const std::string& corpus() {
  static const std::string path = make_corpus("tokens.jsonl", 200);
  return path;
}

std::string write_gzip(const std::string& name, const std::string& text) {
  auto path = scratch() + "/" + name;
  const auto file = ::gzopen(path.c_str(), "wb");
  ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  ::gzclose(file);
  return path;
}

std::string write_zstd(const std::string& name, const std::string& text) {
  std::string packed(::ZSTD_compressBound(text.size()), '\0');
  packed.resize(::ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  return write_file(name, packed);
}

/// Makes a SentencePiece model of bytes and a few longer pieces. It ends documents with </s>, token 2.
const std::string& model() {
  static const std::string path = [] {
    std::string lines;
    for (int i = 0; i < 200; ++i) lines += "the water ran down the levada of number " + std::to_string(i) + "\n";
    const auto prefix = scratch() + "/trained";
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        "--minloglevel=2 --model_type=bpe --vocab_size=300 --byte_fallback=true --hard_vocab_limit=false "
        "--model_prefix=" +
        prefix + " --input=" + write_file("trained.txt", lines));
    EXPECT_TRUE(status.ok()) << status.ToString();
    return prefix + ".model";
  }();
  return path;
}

TEST(CommandTokens, AreCreatedByTheFirstRunAndReadByTheSecond) {
  const auto path = make_corpus("once.jsonl", 50);
  const auto size = std::filesystem::file_size(path);
  const auto first = json_of(feed(path, {"--mesh", "tp=2"}));
  const auto second = json_of(feed(path, {"--mesh", "tp=2"}));
  EXPECT_GT(first.at("prepare_bytes"), size);
  EXPECT_LT(second.at("prepare_bytes"), size) << "only the .idx is read";
  EXPECT_EQ(first.at("ranks").at(1).at("fields"), second.at("ranks").at(1).at("fields"));
}

TEST(CommandTokens, AreRecreatedForAChangedText) {
  const auto path = make_corpus("changes.jsonl", 50);
  const auto before = json_of(feed(path, {}));
  make_corpus("changes.jsonl", 60);
  EXPECT_GT(json_of(feed(path, {})).at("samples"), before.at("samples"));
}

TEST(CommandTokens, AreRecreatedAfterTheirFilesWereRemoved) {
  const auto path = make_corpus("removed.jsonl", 50), dir = scratch() + "/removed";
  const auto wanted = json_of(feed(path, {"--cache-dir", dir}));
  const auto texts = json_of({"cache", "--cache-dir", dir}).at("texts");
  std::filesystem::remove(texts.at(0).at("prefix").get<std::string>() + ".bin");
  EXPECT_EQ(json_of(feed(path, {"--cache-dir", dir})).at("ranks").at(0).at("fields"),
            wanted.at("ranks").at(0).at("fields"));
}

TEST(CommandTokens, RequireAWritableCache) {
  const auto file = write_file("no-folder", "");
  expect_refusal(feed(corpus(), {"--cache-dir", file}), 1, "name another folder (--cache-dir, cache_dir=)");
  expect_refusal({"cache", "--cache-dir", file}, 1, file);
  expect_refusal(feed(corpus(), {}), 1, "neither XDG_CACHE_HOME nor HOME names its folder: name one (--cache-dir",
                 {{"XDG_CACHE_HOME", ""}, {"HOME", ""}});
}

TEST(CommandTokens, NeedNoCacheWithoutText) {
  const auto out = scratch() + "/no-text";
  ASSERT_EQ(run({"convert", corpus(), out}).status, 0);
  EXPECT_EQ(run(feed(out, {}), {{"XDG_CACHE_HOME", ""}, {"HOME", ""}}).status, 0);
}

TEST(CommandTokens, ExceedingTheCacheLimitCausesAWarning) {
  const auto outcome =
      run(feed(corpus(), {"--cache-dir", scratch() + "/full", "--cache-size", "1KB", "--engine", "inproc"}));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("in use, more than its limit of 1000 B"), HasSubstr("--cache-size")));
}

TEST(CommandTokens, RejectAnInvalidCacheSize) {
  for (const char* size : {"much", "-1GB", "5 GB", "1PB"}) {
    expect_refusal(feed(corpus(), {"--cache-size", size}), 2, std::string("--cache-size is ") + size);
    expect_refusal({"cache", "--cache-size", size}, 2, "it must be a number of bytes, such as 200GB or 512MiB");
  }
}

TEST(CommandCache, ListsItsEntries) {
  const auto dir = scratch() + "/listed";
  EXPECT_THAT(run({"cache", "--cache-dir", dir}).out, HasSubstr("0 texts, 0 B"));
  json_of(feed(corpus(), {"--cache-dir", dir}));
  const auto json = json_of({"cache", "--cache-dir", dir});
  EXPECT_EQ(json.at("dir"), dir + "/tokens");
  ASSERT_EQ(json.at("texts").size(), 1U);
  const auto& text = json.at("texts").at(0);
  const auto prefix = text.at("prefix").get<std::string>();
  EXPECT_EQ(text.at("source"), std::filesystem::canonical(corpus()).string());
  EXPECT_EQ(text.at("tokenizer"), "bytes");
  EXPECT_EQ(text.at("documents"), 200);
  EXPECT_EQ(text.at("bytes"),
            std::filesystem::file_size(prefix + ".bin") + std::filesystem::file_size(prefix + ".idx"));
  EXPECT_EQ(text.at("in_use"), false);
  EXPECT_GT(text.at("last_used"), 0);
  const auto listed = run({"cache", "--cache-dir", dir});
  EXPECT_EQ(listed.status, 0);
  EXPECT_THAT(listed.out, AllOf(HasSubstr("tokens.jsonl"), HasSubstr(dir + "/tokens: 1 text, ")));
}

TEST(CommandCache, FeedReadsEntriesLikeAnyDataSet) {
  const auto dir = scratch() + "/read";
  const auto wanted = json_of(feed(corpus(), {"--cache-dir", dir}));
  const auto texts = json_of({"cache", "--cache-dir", dir}).at("texts");
  EXPECT_EQ(json_of(feed(texts.at(0).at("prefix"), {})).at("ranks").at(0).at("fields"),
            wanted.at("ranks").at(0).at("fields"));
}

TEST(CommandCache, ChecksEveryByte) {
  const auto dir = scratch() + "/checked", path = scratch() + "/checked.jsonl";
  std::filesystem::copy_file(make_corpus("checks.jsonl", 4000), path);
  json_of(feed(path, {"--cache-dir", dir}));
  EXPECT_EQ(run({"cache", "--cache-dir", dir, "--check"}).status, 0);
  const auto listed = json_of({"cache", "--cache-dir", dir}).at("texts");
  const auto bin = listed.at(0).at("prefix").get<std::string>() + ".bin";
  ASSERT_GT(std::filesystem::file_size(bin), std::uintmax_t{1} << 20);
  std::fstream(bin, std::ios::in | std::ios::out | std::ios::binary).seekp(8192) << '\0';
  const auto damaged = run({"cache", "--cache-dir", dir, "--check"});
  EXPECT_EQ(damaged.status, 1);
  EXPECT_THAT(damaged.err, HasSubstr("is damaged: remove both to tokenize the text again"));
}

TEST(CommandCache, EvictsTheLeastRecentlyUsedTexts) {
  const auto dir = scratch() + "/pruned";
  const auto old = make_corpus("old.jsonl", 50), young = make_corpus("young.jsonl", 51);
  for (const auto& path : {old, young}) json_of(feed(path, {"--cache-dir", dir}));
  const auto source = [](const std::string& path) { return std::filesystem::canonical(path).string(); };
  auto texts = json_of({"cache", "--cache-dir", dir}).at("texts");
  ASSERT_EQ(texts.size(), 2U);
  for (const auto& text : texts) {
    if (text.at("source") != source(old)) continue;
    const std::filesystem::path file = text.at("prefix").get<std::string>() + ".json";
    std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) - std::chrono::hours(24));
  }
  const auto bytes = texts.at(0).at("bytes").get<int>();  // the text that was used last
  const auto removed = json_of({"cache", "--cache-dir", dir, "--prune", "--cache-size", std::to_string(bytes)});
  ASSERT_EQ(removed.at("removed").size(), 1U);
  EXPECT_EQ(removed.at("removed").at(0).at("source"), source(old));
  texts = json_of({"cache", "--cache-dir", dir}).at("texts");
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_EQ(texts.at(0).at("source"), source(young));
  EXPECT_THAT(run({"cache", "--cache-dir", dir, "--prune", "--cache-size", "0"}).out, HasSubstr("young.jsonl"));
  EXPECT_TRUE(json_of({"cache", "--cache-dir", dir}).at("texts").empty());
}

TEST(CommandCache, KeepsEntriesInUseByAFeed) {
  const auto dir = scratch() + "/used", state = scratch() + "/used.state";
  Command command(feed(corpus(), {"--cache-dir", dir, "--epochs", "0", "--steps", "100000000", "--compute-ms", "1",
                                  "--save-state", state, "--every", "1"}));
  ASSERT_TRUE(wait_for_file(state));
  EXPECT_EQ(json_of({"cache", "--cache-dir", dir}).at("texts").at(0).at("in_use"), true);
  EXPECT_THAT(run({"cache", "--cache-dir", dir}).out, HasSubstr("(in use)"));
  EXPECT_TRUE(json_of({"cache", "--cache-dir", dir, "--prune", "--cache-size", "0"}).at("removed").empty());
  command.signal(SIGKILL);
  command.wait();
  // Its ranks end a little later than the command.
  Json removed;
  for (int trial = 0; trial < 1000 && removed.empty(); ++trial) {
    removed = json_of({"cache", "--cache-dir", dir, "--prune", "--cache-size", "0"}).at("removed");
  }
  EXPECT_EQ(removed.size(), 1U);
}

/// Writes several megabytes, enough for a test to act while they are tokenized.
std::string large_corpus(const std::string& name) {
  std::string lines;
  for (int i = 0; i < 4000; ++i) lines += R"({"text": ")" + std::string(4000, 'x') + "\"}\n";
  return write_file(name, lines);
}

TEST(CommandCache, HoldsOnlyCompleteTextsAfterRunsAreKilled) {
  const auto path = large_corpus("killed.jsonl"), dir = scratch() + "/killed";
  for (const int signal : {SIGKILL, SIGTERM}) {
    for (int milliseconds = 1; milliseconds < 60; milliseconds += 9) {
      Command command(feed(path, {"--cache-dir", dir, "--steps", "1"}));
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      command.signal(signal);
      command.wait();
      EXPECT_EQ(run({"cache", "--cache-dir", dir, "--check"}).status, 0);
      if (signal == SIGKILL) run({"cache", "--cache-dir", dir, "--prune", "--cache-size", "0"});
    }
  }
  json_of(feed(path, {"--cache-dir", dir, "--steps", "1"}));
  std::vector<std::string> extensions;
  // Ranks end a little later than the command that was killed.
  for (int trial = 0; trial < 1000 && (trial == 0 || extensions.size() > 4); ++trial) {
    run({"cache", "--cache-dir", dir, "--prune", "--cache-size", "1GB"});
    extensions.clear();
    for (const auto& file : std::filesystem::directory_iterator(dir + "/tokens")) {
      const auto extension = file.path().extension().string();
      if (extension != ".verified") extensions.push_back(extension);  // The feed may end before this file exists.
    }
  }
  EXPECT_THAT(extensions, ::testing::UnorderedElementsAre(".bin", ".idx", ".json", "")) << "the last is the lock";
}

TEST(CommandCache, OneOfTwoConcurrentRunsTokenizesAText) {
  const auto path = large_corpus("shared.jsonl"), dir = scratch() + "/shared";
  const auto arguments = feed(path, {"--cache-dir", dir, "--steps", "3", "--json"});
  Command first(arguments), second(arguments);
  const auto one = first.wait(), two = second.wait();
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(two.status, 0) << two.err;
  const auto a = Json::parse(one.out), b = Json::parse(two.out);
  EXPECT_EQ(a.at("ranks").at(0).at("fields"), b.at("ranks").at(0).at("fields"));
  const auto size = std::filesystem::file_size(path);
  EXPECT_NE(a.at("prepare_bytes") > size, b.at("prepare_bytes") > size);
  EXPECT_EQ(json_of({"cache", "--cache-dir", dir}).at("texts").size(), 1U);
}

std::string some_texts(const std::string& name, int count) {
  const auto folder = scratch() + "/" + name;
  std::filesystem::create_directory(folder);
  for (int i = 0; i < count; ++i) {
    write_file(name + "/" + std::to_string(i) + ".jsonl",
               R"({"text": ")" + std::string(400'000, char('a' + i)) + "\"}\n");
  }
  write_file(name + "/LICENSE", "...");
  return folder;
}

TEST(CommandCache, IsFilledBeforeRunsReadIt) {
  const auto folder = some_texts("ahead", 6), dir = scratch() + "/filled";
  const auto fill = [&](const std::string& tokenizer) {
    return json_of({"cache", "--fill", folder, "--tokenizer", tokenizer, "--cache-dir", dir});
  };
  const auto first = fill("bytes");
  EXPECT_EQ(first.at("dir"), dir + "/tokens");
  EXPECT_EQ(first.at("texts"), 6);
  EXPECT_EQ(first.at("tokenized"), 6);
  EXPECT_GT(first.at("bytes_read"), 6 * 400'000);
  EXPECT_EQ(first.at("files_left_out").size(), 1U);
  const auto entries = json_of({"cache", "--cache-dir", dir}).at("texts");
  const auto fed = json_of(feed(folder, {"--tokenizer", "bytes", "--cache-dir", dir, "--steps", "2"}));
  EXPECT_LT(fed.at("prepare_bytes"), 400'000) << "the .idx alone";
  EXPECT_EQ(json_of({"cache", "--cache-dir", dir}).at("texts").size(), entries.size());
  EXPECT_EQ(fill("bytes").at("tokenized"), 0);
  EXPECT_EQ(fill(model()).at("tokenized"), 6) << "other tokens";
  const auto mix = write_file("ahead.json",
                              R"({"sources": [{"path": "ahead", "weight": 1}, {"path": "trained.txt", "weight": 1}]})");
  EXPECT_EQ(json_of({"cache", "--fill", mix, "--tokenizer", "bytes", "--cache-dir", dir}).at("tokenized"), 1);
}

TEST(CommandCache, ManyProcessesFillItWithDifferentTexts) {
  const auto folder = some_texts("many", 12), dir = scratch() + "/many-filled";
  std::vector<std::unique_ptr<Command>> processes;
  const std::vector<std::string> arguments = {"cache", "--fill",      folder, "--tokenizer",
                                              "bytes", "--cache-dir", dir,    "--json"};
  for (int i = 0; i < 3; ++i) processes.push_back(std::make_unique<Command>(arguments));
  int tokenized = 0;
  for (const auto& process : processes) {
    const auto outcome = process->wait();
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    tokenized += Json::parse(outcome.out).at("tokenized").get<int>();
  }
  EXPECT_EQ(tokenized, 12);
  EXPECT_EQ(json_of({"cache", "--cache-dir", dir}).at("texts").size(), 12U);
}

TEST(CommandCache, FillNamesAllBadTexts) {
  const auto folder = some_texts("bad", 2), dir = scratch() + "/bad-filled";
  for (const char* name : {"/a.jsonl", "/b.jsonl"}) {
    write_file("bad" + std::string(name), "[]\n{\"text\": \"in " + std::string(name) + "\"}\n");
  }
  const auto outcome = run({"cache", "--fill", folder, "--tokenizer", "bytes", "--cache-dir", dir});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(StartsWith("levada: 2 of 4 texts cannot be used:\n  "), HasSubstr("a.jsonl:1: "),
                                 HasSubstr("b.jsonl:1: ")));
  EXPECT_EQ(json_of({"cache", "--cache-dir", dir}).at("texts").size(), 2U) << "the others are tokenized";
  EXPECT_EQ(json_of({"cache", "--fill", folder, "--tokenizer", "bytes", "--cache-dir", dir, "--skip-bad"})
                .at("skipped_lines"),
            2);
}

TEST(CommandCache, FillRefusesWhatIsMissingAndWhatItCannotTokenize) {
  expect_refusal({"cache", "--fill", corpus(), "missing", "--tokenizer", "bytes"}, 1, "cannot open missing");
  expect_refusal({"cache", "--fill", write_file("picture.png", "x"), "--tokenizer", "bytes"}, 2, "is of unknown kind");
  expect_refusal({"cache", "--check", "--tokenizer", "bytes"}, 2, "--tokenizer requires --fill");
}

TEST(CommandCache, FillRequiresAPath) {
  expect_refusal({"cache", "--fill"}, 2, "--fill needs a PATH");
  expect_refusal({"cache", corpus()}, 2, "requires --fill");
  expect_refusal({"cache", "--fill", corpus(), "--check"}, 2, "--check excludes --fill");
  expect_refusal({"cache", "--fill", corpus(), "--prune"}, 2, "excludes");
}

TEST(CommandCache, CheckExcludesPrune) {
  expect_refusal({"cache", "--check", "--prune"}, 2, "--check excludes --prune");
  expect_refusal({"cache", "--cache-dir", scratch() + "/none", "--cache-size", "1GB"}, 2,
                 "--cache-size requires --prune or --fill");
  expect_refusal({"cache", "--cache-dir", scratch() + "/none", "--prune"}, 2, "--prune requires --cache-size");
}

TEST(CommandTokens, AreTheSameForCompressedAndPlainTexts) {
  const auto text = content(corpus()), out = scratch() + "/of-";
  const auto documents = json_of({"convert", corpus(), out + "plain", "--append-eod"}).at("documents");
  for (const auto& path : {write_gzip("same.jsonl.gz", text), write_zstd("same.jsonl.zst", text)}) {
    const auto name = out + std::filesystem::path(path).extension().string().substr(1);
    EXPECT_EQ(json_of({"convert", path, name, "--append-eod"}).at("documents"), documents);
    for (const char* extension : {".bin", ".idx"})
      EXPECT_EQ(content(name + extension), content(out + "plain" + extension));
    EXPECT_EQ(json_of(feed(path, {})).at("ranks").at(0).at("fields"),
              json_of(feed(name, {})).at("ranks").at(0).at("fields"));
    EXPECT_EQ(json_of({"inspect", path}).at("documents"), documents);
  }
}

TEST(CommandTokens, AreNotCreatedForATruncatedCompressedText) {
  for (const auto& path :
       {write_gzip("cut.jsonl.gz", content(corpus())), write_zstd("cut.jsonl.zst", content(corpus()))}) {
    std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    const auto dir = path + ".cache";
    expect_refusal(feed(path, {"--cache-dir", dir}), 1, path + " ends too early");
    EXPECT_TRUE(json_of({"cache", "--cache-dir", dir}).at("texts").empty());
    expect_refusal({"convert", path, scratch() + "/cut"}, 1, path + " ends too early");
    EXPECT_FALSE(std::filesystem::exists(scratch() + "/cut.bin"));
  }
  expect_refusal(feed(write_file("none.jsonl.gz", "{\"text\": \"plain\"}\n"), {}), 1, "none.jsonl.gz is damaged");
}

/// Returns the tokens that `levada convert` writes for two documents, as uint16.
std::vector<std::uint16_t> tokens_of(std::vector<std::string> options) {
  const auto out = scratch() + "/ended";
  const auto texts = write_file("ended.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n");
  options.insert(options.begin(), {"convert", texts, out, "--overwrite"});
  const auto outcome = run(options);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto bin = content(out + ".bin");
  std::vector<std::uint16_t> tokens(bin.size() / 2);
  std::copy(bin.begin(), bin.end(), reinterpret_cast<char*>(tokens.data()));
  return tokens;
}

TEST(CommandTokens, EndWithTheRequestedToken) {
  using ::testing::ElementsAre;
  EXPECT_THAT(tokens_of({}), ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(tokens_of({"--append-eod"}), ElementsAre('a', 'b', 256, 'c', 256));
  EXPECT_THAT(tokens_of({"--eod", "0"}), ElementsAre('a', 'b', 0, 'c', 0));
  EXPECT_THAT(tokens_of({"--eod", "z"}), ElementsAre('a', 'b', 'z', 'c', 'z'));
  for (const char* token : {"257", "-1", "<eod>"}) {
    const auto words = std::string("bytes has no token ") + token;
    expect_refusal({"convert", corpus(), scratch() + "/unknown", "--eod", token}, 2, words);
    expect_refusal(feed(corpus(), {"--eod", token}), 2, words);
  }
}

TEST(CommandTokens, ComeFromASentencePieceModel) {
  const auto path = write_file("pieces.jsonl", "{\"text\": \"the water ran down the levada\"}\n{\"text\": \"\"}\n");
  const auto out = scratch() + "/pieces";
  const auto done = json_of({"convert", path, out, "--tokenizer", model(), "--append-eod"});
  EXPECT_EQ(done.at("documents"), 2);
  EXPECT_EQ(done.at("sequences"), 1);
  EXPECT_LT(done.at("tokens"), 30) << "fewer than bytes";
  EXPECT_EQ(content(out + ".bin").substr(content(out + ".bin").size() - 2), std::string("\2\0", 2)) << "</s>";
  const auto bin = content(out + ".bin");
  json_of({"convert", path, out, "--tokenizer", model(), "--eod", "</s>", "--overwrite"});
  EXPECT_EQ(content(out + ".bin"), bin);
  const auto inspected = json_of({"inspect", path, "--tokenizer", model()});
  EXPECT_EQ(inspected.at("tokens"), done.at("tokens"));
  const std::vector<std::string> few = {"--batch", "1", "--seq", "2", "--mesh", "dp=2"};
  const auto digests = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), few.begin(), few.end());
    return json_of(std::move(arguments)).at("ranks").at(1).at("fields");
  };
  EXPECT_EQ(digests({"feed", path, "--tokenizer", model()}), digests({"feed", out}));
}

TEST(CommandTokens, OfADataSetAreCheckedAgainstTheTokenizer) {
  const auto path = write_file("beyond.bin", raw_bin<std::uint16_t>({1, 2, 60'000, 3, 4}));
  write_file("beyond.idx", raw_index(8, 2, {5}, {0, 1}).bytes());
  const std::vector<std::string> feed = {"feed", path, "--mesh", "dp=1", "--batch", "1", "--seq", "4"};
  EXPECT_EQ(json_of(feed).at("steps"), 1);
  auto named = feed;
  named.insert(named.end(), {"--tokenizer", model()});
  expect_refusal(named, 1, "beyond.bin: token 2 is 60000, but the tokenizer has ");
}

TEST(CommandTokens, DoNotDependOnTheNameOfTheTokenizer) {
  const auto copy = scratch() + "/copied.model", state = scratch() + "/named.state";
  std::filesystem::copy_file(model(), copy);
  const auto size = std::filesystem::file_size(corpus());
  json_of(feed(corpus(), {"--tokenizer", model(), "--steps", "3", "--save-state", state}));
  const auto more = json_of(feed(corpus(), {"--tokenizer", copy, "--steps", "3", "--load-state", state}));
  EXPECT_EQ(more.at("steps"), 3);
  EXPECT_LT(more.at("prepare_bytes"), size) << "tokenized once";
  expect_refusal(feed(corpus(), {"--load-state", state}), 2, "tokenizer");
}

TEST(CommandTokens, RequireAValidTokenizer) {
  for (const char* command : {"feed", "inspect"}) {
    expect_refusal({command, corpus(), "--tokenizer", "gpt2"}, 2,
                   "--tokenizer is gpt2; it must be bytes or a SentencePiece .model");
    expect_refusal({command, corpus(), "--tokenizer", "/nowhere.model"}, 1, "/nowhere.model: No such file");
    const auto none = write_file("none.model", "no model");
    expect_refusal({command, corpus(), "--tokenizer", none}, 1, none + " is not a SentencePiece model");
  }
}

}  // namespace
}  // namespace levada::test
