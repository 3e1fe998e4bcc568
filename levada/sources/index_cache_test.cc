#include "levada/sources/index_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>

#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

IndexKey some_key() {
  return {.kind = "jsonl 1",
          .real_path = "/data/a.jsonl",
          .identity = {.size = 100, .modified_ns = 5, .device = 1, .inode = 7},
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
  EXPECT_TRUE(store_index(dir.path(), some_key(), some_index()));
  EXPECT_EQ(load_index(dir.path(), some_key()), some_index());
}

TEST(IndexCache, MakesItsFolder) {
  const ScratchDir dir;
  EXPECT_TRUE(store_index(dir.file("a/b"), some_key(), some_index()));
  EXPECT_EQ(load_index(dir.file("a/b"), some_key()), some_index());
}

TEST(IndexCache, GivesNothingForAnotherFileOrAnotherWayToReadIt) {
  const ScratchDir dir;
  ASSERT_TRUE(store_index(dir.path(), some_key(), some_index()));
  const std::vector<std::function<void(IndexKey&)>> changes = {
      [](IndexKey& key) { key.kind = "jsonl 2"; },    [](IndexKey& key) { key.real_path += "2"; },
      [](IndexKey& key) { key.identity.size += 1; },  [](IndexKey& key) { key.identity.modified_ns += 1; },
      [](IndexKey& key) { key.identity.inode += 1; }, [](IndexKey& key) { key.text_field = "body"; },
      [](IndexKey& key) { key.skip_bad = true; },     [](IndexKey& key) { key.stride = 8; },
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
  ASSERT_TRUE(store_index(dir.path(), key, {}));
  key.identity.modified_ns += 1;
  ASSERT_TRUE(store_index(dir.path(), key, some_index()));
  only_file(dir);
  EXPECT_EQ(load_index(dir.path(), key), some_index());
}

TEST(IndexCache, RefusesAFileWithAnyByteChanged) {
  const ScratchDir dir;
  ASSERT_TRUE(store_index(dir.path(), some_key(), some_index()));
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
  ASSERT_TRUE(store_index(dir.path(), some_key(), some_index()));
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
  EXPECT_FALSE(store_index(file + "/cache", some_key(), some_index()));
  EXPECT_EQ(load_index(file + "/cache", some_key()), std::nullopt);
}

TEST(IndexCache, LeavesNothingHalfWrittenBehind) {
  const ScratchDir dir;
  // A folder stands where the index should be.
  ASSERT_TRUE(store_index(dir.path(), some_key(), some_index()));
  const auto path = only_file(dir);
  std::filesystem::remove(path);
  std::filesystem::create_directories(path + "/full");
  EXPECT_FALSE(store_index(dir.path(), some_key(), some_index()));
  EXPECT_EQ(only_file(dir), path);
}

}  // namespace
}  // namespace levada
