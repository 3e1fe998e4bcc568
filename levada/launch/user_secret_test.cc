#include "levada/launch/user_secret.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/host.h"

namespace levada::launch {
namespace {

const char* unset(const char*) {
  return nullptr;
}

class UserSecret : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() == overflow_uid()) GTEST_SKIP() << "the overflow user has no secret";  // skipped without: a user id
    std::string name = testing::TempDir() + "secretXXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    folder_ = fmt::format("{}/levada-{}", root_, ::geteuid());
    file_ = folder_ + "/secret";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Secret read(const std::string& home = {}) const { return user_secret(root_, home, unset); }
  std::string refusal() const {
    try {
      static_cast<void>(read());
    } catch (const EngineError& error) {
      return error.what();
    }
    return {};
  }

  std::string root_, folder_, file_;
};

TEST_F(UserSecret, IsTheSameOnEveryRankThatSeesTheFolder) {
  std::array<Secret, 8> secrets;
  {
    std::vector<std::jthread> ranks;
    for (Secret& secret : secrets) ranks.emplace_back([&] { secret = read(); });
  }
  for (const Secret& secret : secrets) EXPECT_EQ(secret, secrets[0]);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  struct stat file {};
  ASSERT_EQ(::stat(file_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777U, 0600U);
}

TEST_F(UserSecret, IsRejectedInAFolderThatOthersCanEnter) {
  static_cast<void>(read());
  ::chmod(folder_.c_str(), 0711);
  EXPECT_NE(refusal().find("is open to other users (mode 0711)"), std::string::npos) << refusal();
}

TEST_F(UserSecret, IsRejectedInAFileThatOthersCanRead) {
  static_cast<void>(read());
  ::chmod(file_.c_str(), 0644);
  EXPECT_NE(refusal().find("secret is open to other users (mode 0644)"), std::string::npos) << refusal();
}

TEST_F(UserSecret, IsRejectedInALinkedFolder) {
  ASSERT_EQ(::mkdir((root_ + "/elsewhere").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("elsewhere", folder_.c_str()), 0);
  EXPECT_NE(refusal().find("open: "), std::string::npos) << refusal();
}

TEST_F(UserSecret, IsRejectedInALinkedFile) {
  ASSERT_EQ(::mkdir(folder_.c_str(), 0700), 0);
  ASSERT_EQ(::symlink("/etc/hostname", file_.c_str()), 0);
  EXPECT_NE(refusal().find("open: "), std::string::npos) << refusal();
}

TEST_F(UserSecret, IsRejectedInAFolderOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";  // skipped without: root
  ASSERT_EQ(::mkdir(folder_.c_str(), 0700), 0);
  ASSERT_EQ(::chown(folder_.c_str(), 4242, 4242), 0);
  EXPECT_NE(refusal().find("belongs to another user (uid 4242)"), std::string::npos) << refusal();
}

TEST_F(UserSecret, MovesToTheHomeFolderIfAnotherUserHoldsItsPath) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";  // skipped without: root
  for (const bool is_link : {false, true}) {
    std::filesystem::remove_all(folder_);
    if (is_link) ASSERT_EQ(::symlink("elsewhere", folder_.c_str()), 0);
    else ASSERT_EQ(::mkdir(folder_.c_str(), 0700), 0);
    ASSERT_EQ(::lchown(folder_.c_str(), 4242, 4242), 0);
    EXPECT_EQ(read(root_ + "/home"), read(root_ + "/home"));
  }
  EXPECT_TRUE(std::filesystem::exists(root_ + "/home/.cache/levada/secret/secret"));
}

TEST_F(UserSecret, IsRejectedIfTruncated) {
  static_cast<void>(read());
  std::filesystem::resize_file(file_, 31);
  EXPECT_NE(refusal().find("does not contain the 32 bytes"), std::string::npos) << refusal();
}

TEST_F(UserSecret, IsDerivedFromTheVariableIfLongEnough) {
  const auto from = [](const char* text) { return user_secret("/nowhere", "", [text](const char*) { return text; }); };
  EXPECT_EQ(from("0123456789abcdef"), from("0123456789abcdef"));
  EXPECT_NE(from("0123456789abcdef"), from("0123456789abcdeg"));
  EXPECT_THROW(from("0123456789abcde"), InvalidArgument);
  EXPECT_THROW(from(""), InvalidArgument);
}

}  // namespace
}  // namespace levada::launch
