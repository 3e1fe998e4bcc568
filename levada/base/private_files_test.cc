#include "levada/base/private_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include "levada/base/atomic_file.h"
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
    return refusal<SourceError>(
        [&] { static_cast<void>(FolderTrust::of(folder_, "the cache", "name another folder")); });
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

TEST_F(PrivateFiles, GetPrivateFoldersRegardlessOfTheUmask) {
  const auto before = ::umask(0);
  create_private_folder(path("a/b/c"));
  ::umask(before);
  for (const auto* name : {"a", "a/b", "a/b/c"}) EXPECT_EQ(mode_of(path(name)), 0700U) << name;
}

TEST_F(PrivateFiles, KeepTheModeOfAnExistingFolder) {
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  create_private_folder(folder_ + "/");
  EXPECT_EQ(mode_of(folder_), 0755U);
}

TEST_F(PrivateFiles, AreRejectedInAFolderThatOthersCanWriteTo) {
  for (const mode_t mode : {0700U, 0755U, 01777U, 02770U, 02775U, 03770U})
    EXPECT_EQ(refusal_of(mode), "nothing was refused") << mode;
  EXPECT_EQ(refusal_of(0775), "the cache " + folder_ +
                                  " can be written to by other users (mode 0775), who can replace its files: run "
                                  "chmod go-w on it, chmod g+s,o-w to share it with its group, or name another folder");
  EXPECT_THAT(refusal_of(0702), HasSubstr("(mode 0702)"));
  EXPECT_EQ(FolderTrust::of(path("missing"), "the cache", "").file_mode(), private_mode);
}

TEST_F(PrivateFiles, AreRejectedInAnotherUsersFolder) {
  if (::chown(folder_.c_str(), 12345, 12345) != 0) return;  // Only root can do that.
  EXPECT_THAT(refusal_of(0700), StartsWith("the cache " + folder_ + " belongs to another user (uid 12345)"));
  EXPECT_THAT(refusal_of(01777), HasSubstr("belongs to another user"));
}

TEST_F(PrivateFiles, AreWritableByTheirOwnerOnly) {
  std::ofstream(path("a")) << "text";
  const auto trust = FolderTrust::of(folder_, "the cache", "");
  for (const mode_t mode : {0600U, 0644U, 0400U}) {
    ASSERT_EQ(::chmod(path("a").c_str(), mode), 0);
    EXPECT_TRUE(trust.covers(path("a"))) << mode;
  }
  for (const mode_t mode : {0620U, 0602U}) {
    ASSERT_EQ(::chmod(path("a").c_str(), mode), 0);
    EXPECT_FALSE(trust.covers(path("a"))) << mode;
  }
  EXPECT_FALSE(trust.covers(folder_));
  std::filesystem::create_symlink("a", path("link"));
  EXPECT_FALSE(trust.covers(path("link")));
}

/// Calls `act` as another user, in a separate process.
bool as_user(uid_t user, gid_t group, const std::function<bool()>& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const bool is_user = ::setgroups(0, nullptr) == 0 && ::setgid(group) == 0 && ::setuid(user) == 0;
      ::_exit(is_user && act() ? 0 : 1);
    } catch (const SourceError&) {
      ::_exit(2);
    }
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST_F(PrivateFiles, AreSharedByAGroupInASetGroupIdFolder) {
  if (::chown(folder_.c_str(), 4001, 5000) != 0)
    GTEST_SKIP() << "only root can be several users";  // skipped without: root
  ASSERT_EQ(::chmod(folder_.c_str(), 02770), 0);
  const auto write = [&](const std::string& name) {
    const auto trust = FolderTrust::of(folder_, "the cache", "");
    create_private_folder(path("sub"));
    AtomicFile file(path("sub/" + name), {}, trust.file_mode());
    file.publish();
    return trust.covers(path("sub/" + name));
  };
  const auto covers = [&](const std::string& name) {
    return FolderTrust::of(path("sub"), "the cache", "").covers(path("sub/" + name));
  };
  EXPECT_TRUE(as_user(4001, 5000, [&] { return ::umask(077), write("a"); }));
  EXPECT_TRUE(as_user(4002, 5000, [&] { return covers("a") && ::umask(0) != 1 && write("b"); }));
  EXPECT_TRUE(as_user(4001, 5000, [&] { return covers("b"); }));
  EXPECT_EQ(mode_of(path("sub/a")), 0660U);
  EXPECT_EQ(mode_of(path("sub/b")), 0660U);
  // Users outside the group can neither write to the folder nor create files of the group.
  EXPECT_FALSE(as_user(4003, 5001, [&] { return write("c"); }));
  ASSERT_EQ(::chown(path("sub/b").c_str(), 4003, 5001), 0);
  EXPECT_TRUE(as_user(4001, 5000, [&] { return !covers("b"); }));
}

TEST_F(PrivateFiles, AreNotSharedWithAGroupThatAnotherUserChose) {
  if (::chown(folder_.c_str(), 4001, 5000) != 0)
    GTEST_SKIP() << "only root can be several users";  // skipped without: root
  for (const mode_t mode : {02770U, 02775U})
    EXPECT_THAT(refusal_of(mode), HasSubstr("belongs to another user")) << mode;
  create_private_folder(path("sub"));
  EXPECT_EQ(mode_of(path("sub")) & ACCESSPERMS, 0700U);
  // Root has chosen the group of its own folder.
  ASSERT_EQ(::chown(folder_.c_str(), 0, 5000), 0);
  EXPECT_EQ(refusal_of(02770), "nothing was refused");
  EXPECT_NE(FolderTrust::of(folder_, "the cache", "").file_mode(), private_mode);
}

TEST_F(PrivateFiles, OfAReadOnlyFolderMustBelongToItsOwner) {
  if (::chown(folder_.c_str(), 4001, 5000) != 0)
    GTEST_SKIP() << "only root can be several users";  // skipped without: root
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  for (const auto& [name, user] : {std::pair("a", 4001U), {"b", 4003U}}) {
    std::ofstream(path(name)) << "text";
    ASSERT_EQ(::chown(path(name).c_str(), user, 5000), 0);
  }
  EXPECT_TRUE(as_user(4002, 5001, [&] {
    const auto trust = FolderTrust::of(folder_, "the cache", "");
    return trust.is_read_only() && trust.covers(path("a")) && !trust.covers(path("b"));
  }));
}

TEST_F(PrivateFiles, OfAWritableFolderStayWritableWithoutAFreeDescriptor) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto own = owner_of_new_files(folder_);
  const int error = errno;
  const auto trust = FolderTrust::of(folder_, "the cache", "");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(own);
  EXPECT_EQ(error, EMFILE);
  EXPECT_FALSE(trust.is_read_only());
  AtomicFile(path("a"), {}, trust.file_mode()).publish();
  EXPECT_TRUE(trust.covers(path("a")));
}

TEST_F(PrivateFiles, BelongToTheUserThatTheFileSystemMapsTo) {
  // Simulates a file system that maps users: a process with another effective user id for files.
  if (::chown(folder_.c_str(), 65534, 65534) != 0)
    GTEST_SKIP() << "only root can be several users";  // skipped without: root
  EXPECT_TRUE(as_user(0, 0, [&] {
    ::setfsuid(65534);
    const auto trust = FolderTrust::of(folder_, "the cache", "");
    AtomicFile(path("a"), {}, trust.file_mode()).publish();
    return trust.covers(path("a")) && !trust.is_read_only() && ::geteuid() == 0;
  }));
}

}  // namespace
}  // namespace levada
