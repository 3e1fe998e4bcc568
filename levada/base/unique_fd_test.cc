#include "levada/base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace levada {
namespace {

UniqueFd open_null() {
  return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

TEST(UniqueFd, ClosesWithItsOwner) {
  int fd = -1;
  {
    const auto owner = open_null();
    fd = owner.get();
    EXPECT_TRUE(owner);
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
}

TEST(UniqueFd, TransfersOwnership) {
  auto first = open_null();
  const int fd = first.get();
  UniqueFd second(std::move(first));
  EXPECT_EQ(second.get(), fd);
  UniqueFd third;
  third = std::move(second);
  EXPECT_EQ(third.get(), fd);
  EXPECT_EQ(UniqueFd(third.release()).get(), fd);
  EXPECT_FALSE(third);
  EXPECT_FALSE(is_open(fd));
}

}  // namespace
}  // namespace levada
