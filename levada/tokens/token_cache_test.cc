#include "levada/sources/index_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <future>

#include "levada/base/fault_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

IndexKey some_key() {
  return {.kind = "jsonl 1",
          .real_path = "/data/a.jsonl",
          .identity = {.size = 100, .modified_ns = 5, .changed_ns = 6, .inode = 7},
          .text_field = "text",
          .skip_bad = false,
          .stride = 4,
          .phase = 1};
}

FileIndex some_index() {
  return {.contents = {.tokens = 10, .documents = 2, .bad_lines = 1, .digest = "0123"},
          .cuts = {40, 80, 120},
          .documents = {.begins = {9, 60}, .tokens = {4, 6}},
          .skipped = {{5, 9}}};
}

std::optional<FileIndex> load_index(const std::string& dir, const IndexKey& key) {
  return KeptIndex(dir, key).load();
}

void store_index(const std::string& dir, const IndexKey& key, const FileIndex& index) {
  KeptIndex kept(dir, key);
  EXPECT_EQ(kept.load_or_reserve([] { FAIL() << "nobody else makes it"; }), std::nullopt);
  kept.store(index);
}

std::string only_file(const ScratchDir& dir) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1);
  return files.at(0);
}

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(IndexCache, GivesBackWhatItWasGiven) {
  const ScratchDir dir;
  EXPECT_EQ(load_index(dir.path(), some_key()), std::nullopt);
  store_index(dir.path(), some_key(), some_index());
  EXPECT_EQ(load_index(dir.path(), some_key()), some_index());
}

TEST(IndexCache, MakesItsFolder) {
  const ScratchDir dir;
  store_index(dir.file("a/b"), some_key(), some_index());
  EXPECT_EQ(load_index(dir.file("a/b"), some_key()), some_index());
}

TEST(IndexCache, GivesNothingForAnotherFileOrAnotherWayToReadIt) {
  const ScratchDir dir;
  store_index(dir.path(), some_key(), some_index());
  const std::vector<std::function<void(IndexKey&)>> changes = {
      [](IndexKey& key) { key.kind = "jsonl 2"; },
      [](IndexKey& key) { key.real_path += "2"; },
      [](IndexKey& key) { key.identity.size += 1; },
      [](IndexKey& key) { key.identity.modified_ns += 1; },
      [](IndexKey& key) { key.identity.inode += 1; },
      [](IndexKey& key) { key.text_field = "body"; },
      [](IndexKey& key) { key.identity.changed_ns += 1; },
      [](IndexKey& key) { key.skip_bad = true; },
      [](IndexKey& key) { key.stride = 8; },
      [](IndexKey& key) { key.phase = 0; },
  };
  for (const auto& change : changes) {
    auto key = some_key();
    change(key);
    EXPECT_EQ(load_index(dir.path(), key), std::nullopt);
  }
  EXPECT_EQ(load_index(dir.path(), some_key()), some_index());
}

TEST(IndexCache, PutsTheIndexOfAChangedFileInPlaceOfTheOld) {
  const ScratchDir dir;
  auto key = some_key();
  store_index(dir.path(), key, {});
  key.identity.modified_ns += 1;
  store_index(dir.path(), key, some_index());
  only_file(dir);
  EXPECT_EQ(load_index(dir.path(), key), some_index());
}

TEST(IndexCache, RefusesAFileWithAnyByteChanged) {
  const ScratchDir dir;
  store_index(dir.path(), some_key(), some_index());
  const auto path = only_file(dir);
  const auto whole = content_of(path);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    std::ofstream(path, std::ios::binary) << changed;
    EXPECT_EQ(load_index(dir.path(), some_key()), std::nullopt) << "byte " << i;
  }
}

TEST(IndexCache, RefusesAFileOfAnyOtherLength) {
  const ScratchDir dir;
  store_index(dir.path(), some_key(), some_index());
  const auto path = only_file(dir);
  const auto whole = content_of(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::filesystem::resize_file(path, size);
    EXPECT_EQ(load_index(dir.path(), some_key()), std::nullopt) << size << " bytes";
    std::ofstream(path, std::ios::binary) << whole;
  }
  std::ofstream(path, std::ios::binary) << whole << "more";
  EXPECT_EQ(load_index(dir.path(), some_key()), std::nullopt);
}

TEST(IndexCache, GoesWithoutAFolderThatCannotBe) {
  const ScratchDir dir;
  const auto file = dir.write("file", "");
  EXPECT_THAT(fault_of([&] { store_index(file + "/cache", some_key(), some_index()); }),
              HasSubstr("SourceError: cannot create " + file + "/cache/"));
  EXPECT_EQ(load_index(file + "/cache", some_key()), std::nullopt);
}

TEST(IndexCache, LeavesNothingHalfWrittenBehind) {
  const ScratchDir dir;
  // A folder stands where the index should be.
  store_index(dir.path(), some_key(), some_index());
  const auto path = only_file(dir);
  std::filesystem::remove(path);
  std::filesystem::create_directories(path + "/full");
  EXPECT_THAT(fault_of([&] { store_index(dir.path(), some_key(), some_index()); }),
              HasSubstr("SourceError: cannot name"));
  EXPECT_EQ(only_file(dir), path);
}

TEST(IndexCache, HasOneProcessMakeAnIndexForWhichOthersWait) {
  const ScratchDir dir;
  KeptIndex maker(dir.path(), some_key()), other(dir.path(), some_key());
  ASSERT_EQ(maker.load_or_reserve([] {}), std::nullopt);
  std::promise<void> waits;
  auto found = std::async(std::launch::async, [&] { return other.load_or_reserve([&] { waits.set_value(); }); });
  waits.get_future().wait();
  maker.store(some_index());
  EXPECT_EQ(found.get(), some_index());
}

TEST(IndexCache, LetsAnotherProcessMakeAnIndexThatOneHasGivenUp) {
  const ScratchDir dir;
  auto maker = std::make_unique<KeptIndex>(dir.path(), some_key());
  KeptIndex other(dir.path(), some_key());
  ASSERT_EQ(maker->load_or_reserve([] {}), std::nullopt);
  EXPECT_EQ(other.load_or_reserve([&] { maker.reset(); }), std::nullopt);
  other.store(some_index());
  EXPECT_EQ(load_index(dir.path(), some_key()), some_index());
}

TEST(IndexCache, RemovesWhatAKilledProcessLeft) {
  const ScratchDir dir;
  const auto child = ::fork();
  if (child == 0) {
    KeptIndex kept(dir.path(), some_key());
    kept.load_or_reserve([] {});
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  only_file(dir);
  remove_abandoned_indexes(dir.path());
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(IndexCache, ForgetsAnIndexThatDoesNotHold) {
  const ScratchDir dir;
  store_index(dir.path(), some_key(), some_index());
  KeptIndex(dir.path(), some_key()).remove();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(IndexCache, BelievesNoIndexOfAnotherUserAndNothingThatIsNoFile) {
  const ScratchDir dir;
  store_index(dir.path(), some_key(), some_index());
  const auto path = only_file(dir);
  std::filesystem::rename(path, path + ".real");
  std::filesystem::create_symlink(path + ".real", path);
  EXPECT_EQ(load_index(dir.path(), some_key()), std::nullopt);
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(load_index(dir.path(), some_key()), std::nullopt);
  std::filesystem::rename(path + ".real", path);
  EXPECT_EQ(load_index(dir.path(), some_key()), some_index());
  const bool is_theirs = ::chown(path.c_str(), 12345, 12345) == 0;  // Only root can do that.
  EXPECT_EQ(load_index(dir.path(), some_key()).has_value(), !is_theirs);
}

}  // namespace
}  // namespace levada
