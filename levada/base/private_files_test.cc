#include "levada/base/private_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "levada/base/error.h"
#include "levada/base/refusal_testing.h"
#include "levada/base/unique_fd.h"

namespace levada {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class PrivateFiles : public ::testing::Test {
 protected:
  ~PrivateFiles() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string refusal_of(mode_t mode) const {
    EXPECT_EQ(::chmod(folder_.c_str(), mode), 0);
    return refusal<SourceError>([&] { expect_private_folder(folder_, "the cache", "name another folder"); });
  }
  static mode_t mode_of(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::lstat(path.c_str(), &status), 0);
    return status.st_mode & 07777U;
  }

  std::string folder_ = [] {
    std::string path = (std::filesystem::temp_directory_path() / "levada-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    return path;
  }();
};

TEST_F(PrivateFiles, AreInFoldersThatAreCreatedForOneUserWhateverTheUmask) {
  const auto before = ::umask(0);
  create_private_folder(path("a/b/c"));
  ::umask(before);
  for (const auto* name : {"a", "a/b", "a/b/c"}) EXPECT_EQ(mode_of(path(name)), 0700U) << name;
}

TEST_F(PrivateFiles, LeaveAFolderThatExistsAsItIs) {
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  create_private_folder(folder_ + "/");
  EXPECT_EQ(mode_of(folder_), 0755U);
}

TEST_F(PrivateFiles, AreRefusedAFolderInWhichOthersCanReplaceThem) {
  for (const mode_t mode : {0700U, 0755U, 01777U, 03770U}) EXPECT_EQ(refusal_of(mode), "nothing was refused") << mode;
  EXPECT_EQ(refusal_of(02775), "the cache " + folder_ +
                                   " can be written to by other users (mode 2775), who can replace what is in it: run "
                                   "chmod go-w on it, or name another folder");
  EXPECT_THAT(refusal_of(0702), HasSubstr("(mode 0702)"));
  expect_private_folder(path("missing"), "the cache", "name another folder");
}

TEST_F(PrivateFiles, AreRefusedAnotherUsersFolder) {
  if (::chown(folder_.c_str(), 12345, 12345) != 0) return;  // Only root can do that.
  EXPECT_THAT(refusal_of(0700), StartsWith("the cache " + folder_ + " belongs to another user (uid 12345)"));
  EXPECT_THAT(refusal_of(01777), HasSubstr("belongs to another user"));
}

TEST_F(PrivateFiles, AreThoseThatNobodyElseMayWriteTo) {
  std::ofstream(path("a")) << "text";
  const UniqueFd fd(::open(path("a").c_str(), O_RDONLY | O_CLOEXEC));
  for (const mode_t mode : {0600U, 0644U, 0400U}) {
    ASSERT_EQ(::fchmod(fd.get(), mode), 0);
    EXPECT_TRUE(is_own(fd.get()) && is_private(fd.get())) << mode;
  }
  for (const mode_t mode : {0620U, 0602U}) {
    ASSERT_EQ(::fchmod(fd.get(), mode), 0);
    EXPECT_TRUE(is_own(fd.get()) && !is_private(fd.get())) << mode;
  }
  const UniqueFd folder(::open(folder_.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(is_own(folder.get()));
}

}  // namespace
}  // namespace levada
