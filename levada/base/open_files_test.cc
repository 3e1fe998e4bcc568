#include "levada/base/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "levada/base/error.h"

namespace levada {
namespace {

class OpenFiles : public testing::Test {
 protected:
  OpenFiles() { ::getrlimit(RLIMIT_NOFILE, &before_); }
  ~OpenFiles() override { ::setrlimit(RLIMIT_NOFILE, &before_); }

  static rlim_t soft_limit() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
  }
  void lower_soft_limit(rlim_t to) const {
    const rlimit limit{to, before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  rlimit before_{};
};

TEST_F(OpenFiles, RaiseTheSoftLimitAsNeeded) {
  lower_soft_limit(64);
  reserve_open_files(500, "rank 3");
  EXPECT_GE(soft_limit(), 1500U);
  EXPECT_LT(soft_limit(), 3000U);
}

TEST_F(OpenFiles, KeepASufficientLimit) {
  const rlim_t before = soft_limit();
  if (before < 2048) GTEST_SKIP() << "the limit is low";  // skipped without: 2048 open files
  reserve_open_files(10, "rank 3");
  EXPECT_EQ(soft_limit(), before);
}

TEST_F(OpenFiles, NameTheRequiredNumberIfTheHardLimitIsTooLow) {
  try {
    reserve_open_files(std::size_t{1} << 40, "rank 3");
    FAIL();
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("rank 3 needs 109951162"), 0U) << text;
    EXPECT_NE(text.find("raise the number of open files, for example with `ulimit -n 10995116"), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace levada
