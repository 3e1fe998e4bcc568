// A token cache whose lock is held, whose disk refuses, and whose texts are empty.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "levada/base/atomic_file.h"
#include "levada/base/fault_testing.h"
#include "levada/base/unique_fd.h"
#include "levada/tokens/token_caching_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using TokenCacheFaults = TokenCaching;

TEST_F(TokenCacheFaults, AdvisesToFreeSpaceOnlyOnAFullDisk) {
  auto cache = open();
  const auto remedy = [&](int error) { return cache.folder().with_remedy(WriteFailed(error, "cannot create x")); };
  EXPECT_EQ(remedy(EROFS), "cannot create x; name another folder (--cache-dir, cache_dir=)");
  EXPECT_THAT(remedy(EDQUOT), HasSubstr("make room"));
}

TEST_F(TokenCacheFaults, WarnsAboutALongWaitForTheFoldersLock) {
  auto cache = open();
  const UniqueFd lock(::open(dir_.file("cache/tokens/lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  std::thread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5500));
    ::flock(lock.get(), LOCK_UN);
  });
  EXPECT_GT(tokenize(cache, b_).bytes_read, 0);
  holder.join();
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("which another process has locked")));
}

TEST_F(TokenCacheFaults, SkipsEmptyTextsAndCountsThem) {
  const TokenizeTexts how{.tokenizer = tokenizer_, .text = {.skip_bad = true}, .threads = 1};
  const std::vector<std::string> texts = {dir_.write("none.jsonl", ""), a_};
  for (int run = 0; run < 2; ++run) {
    auto cache = open();
    const auto tokens = cache.tokenize(texts, how);
    EXPECT_EQ(tokens[0].prefix, "");
    EXPECT_EQ(tokens[0].bad_lines.count, 1);
    EXPECT_EQ(tokens[1].bad_lines.count, 1);
  }
}

TEST_F(TokenCacheFaults, RefusesAUrlAsItsFolder) {
  EXPECT_THAT(fault_of([] { token_cache_folder("s3://b/c"); }),
              HasSubstr("InvalidArgument: the folder of the cache is s3://b/c; it must be a local one"));
}

}  // namespace
}  // namespace levada
