#include "levada/sources/content_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "levada/sources/file.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string noticed_by(const ContentWatch& watch) {
  try {
    watch.expect_unchanged();
  } catch (const SourceError& error) {
    return error.what();
  }
  return "";
}

/// Overwrites a byte, and resets the modification time.
void overwrite_unseen(const std::string& path, std::uint64_t at) {
  struct stat before {};
  ::stat(path.c_str(), &before);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(static_cast<std::streamoff>(at)).put('#');
  const std::array times = {before.st_atim, before.st_mtim};
  ::utimensat(AT_FDCWD, path.c_str(), times.data(), 0);
}

struct Change {
  std::string name;
  std::function<void(const std::string& path)> make;
};

/// Harmless changes to files that a job reads, by backups, snapshots and colleagues.
std::vector<Change> harmless() {
  return {
      {"chmod", [](const std::string& path) { ::chmod(path.c_str(), 0640); }},
      {"chmod back", [](const std::string& path) { ::chmod(path.c_str(), 0644); }},
      {"chown to the same owner", [](const std::string& path) { ::chown(path.c_str(), ::geteuid(), ::getegid()); }},
      {"link, or remove one of two names",
       [](const std::string& path) {
         if (!fs::remove(path + ".backup")) fs::create_hard_link(path, path + ".backup");
       }},
      {"touch -a",
       [](const std::string& path) {
         const std::array times = {timespec{.tv_sec = 1, .tv_nsec = 0}, timespec{.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
         ::utimensat(AT_FDCWD, path.c_str(), times.data(), 0);
       }},
      {"rename there and back", [](const std::string& path) {
         fs::rename(path, path + ".moved");
         fs::rename(path + ".moved", path);
       }}};
}

TEST(ContentWatch, IgnoresMetadataChanges) {
  const ScratchDir dir;
  const auto path = dir.write("a.bin", std::string(1 << 20, 'x'));
  const auto file = open_file(path);
  const ContentWatch watch(*file);
  std::mt19937 random(7);
  auto changes = harmless();
  for (int i = 0; i < 50; ++i) {
    std::ranges::shuffle(changes, random);
    for (const Change& change : changes) {
      change.make(path);
      EXPECT_EQ(noticed_by(watch), "") << change.name;
    }
  }
}

TEST(ContentWatch, IgnoresRenames) {
  const ScratchDir dir;
  const auto path = dir.write("a.bin", "hello");
  const auto file = open_file(path);
  const ContentWatch watch(*file);
  fs::rename(path, dir.file("b.bin"));
  EXPECT_EQ(noticed_by(watch), "");
}

TEST(ContentWatch, DetectsChangesWithARestoredModificationTime) {
  const ScratchDir dir;
  for (const std::size_t size : {std::size_t{1}, std::size_t{5000}, std::size_t{1} << 20}) {
    const auto path = dir.write("a.bin", std::string(size, 'x'));
    const auto file = open_file(path);
    const ContentWatch watch(*file);
    const auto before = file->identity().changed_ns;
    // The clock of a file system may tick slowly.
    do overwrite_unseen(path, size - 1);
    while (file->identity().changed_ns == before);
    EXPECT_THAT(noticed_by(watch), HasSubstr("a.bin was written to while")) << size;
    ::chmod(path.c_str(), 0640);
    EXPECT_THAT(noticed_by(watch), HasSubstr("a.bin was written to while")) << size;
  }
}

TEST(ContentWatch, DetectsEveryChangeOfContent) {
  const ScratchDir dir;
  const std::vector<std::pair<Change, std::string>> changes = {
      {{"append", [](const std::string& path) { std::ofstream(path, std::ios::app) << "more"; }}, "grew from 5 to 9"},
      {{"cut", [](const std::string& path) { fs::resize_file(path, 3); }}, "shrank from 5 to 3"},
      {{"touch", [](const std::string& path) { fs::last_write_time(path, fs::file_time_type::clock::now()); }},
       "was written to"},
      {{"remove", [](const std::string& path) { fs::remove(path); }}, "was removed or replaced"},
  };
  for (const auto& [change, what] : changes) {
    const auto path = dir.write("a.bin", "hello");
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
    const auto file = open_file(path);
    const ContentWatch watch(*file);
    change.make(path);
    EXPECT_THAT(noticed_by(watch), HasSubstr(what)) << change.name;
  }
}

TEST(ContentWatch, ReadsNothingIfStorageHasNoChangeTime) {
  const MemoryFile file("a.bin", "hello");
  const ContentWatch watch(file);
  EXPECT_EQ(noticed_by(watch), "");
}

}  // namespace
}  // namespace levada
