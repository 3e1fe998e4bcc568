#include "levada/sources/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "levada/base/error.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

std::string fault_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const SourceError& error) {
    return error.what();
  }
  return "no fault";
}

TEST(File, ReadsBytesAtAnOffset) {
  const ScratchDir dir;
  const auto file = open_file(dir.write("a.txt", "hello"));
  std::string into(4, '-');
  EXPECT_EQ(read_fully(*file, 1, into), 4);
  EXPECT_EQ(into, "ello");
  EXPECT_EQ(read_fully(*file, 3, into), 2);
  EXPECT_EQ(read_fully(*file, 9, into), 0);
  EXPECT_EQ(file->identity().size, 5);
}

TEST(File, SaysWhatCannotBeOpened) {
  const ScratchDir dir;
  EXPECT_THAT(fault_of([&] { open_file(dir.file("none.txt")); }), HasSubstr("none.txt: No such file"));
  EXPECT_THAT(fault_of([&] { open_file(dir.path()); }), HasSubstr("is a directory"));
  ASSERT_EQ(::mkfifo(dir.file("pipe.txt").c_str(), 0600), 0);
  EXPECT_THAT(fault_of([&] { open_file(dir.file("pipe.txt")); }), HasSubstr("pipe.txt is not a regular file"));
}

TEST(File, ReadsOnAfterShortReads) {
  MemoryFile file("a.txt", "hello");
  file.most_at_once = 2;
  std::string into(5, '-');
  EXPECT_EQ(read_fully(file, 0, into), 5);
  EXPECT_EQ(into, "hello");
}

TEST(File, SaysWhatHappenedToIt) {
  const ScratchDir dir;
  const auto path = dir.write("a.txt", "hello");
  const auto file = open_file(path);
  const auto before = file->identity();
  EXPECT_EQ(fault_of([&] { expect_unchanged(*file, before); }), "no fault");
  std::filesystem::resize_file(path, 3);
  EXPECT_THAT(fault_of([&] { expect_unchanged(*file, before); }), HasSubstr("a.txt shrank from 5 to 3 bytes"));
  dir.write("a.txt", "hello, world");
  EXPECT_THAT(fault_of([&] { expect_unchanged(*file, before); }), HasSubstr("grew from 5 to 12 bytes"));
  const auto longer = file->identity();
  dir.write("b.txt", "hello, there");
  std::filesystem::rename(dir.file("b.txt"), path);
  EXPECT_THAT(fault_of([&] { expect_unchanged(*file, longer); }), HasSubstr("was removed or replaced"));
}

TEST(File, NoticesThatItWasWrittenTo) {
  MemoryFile file("a.txt", "hello");
  const auto before = file.identity();
  file.now.modified_ns += 1;
  EXPECT_THAT(fault_of([&] { expect_unchanged(file, before); }), HasSubstr("a.txt was written to while"));
}

}  // namespace
}  // namespace levada
