#include "levada/engine/fork_token.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace levada {
namespace {

TEST(ForkToken, IsValidOnlyInTheProcessThatMadeIt) {
  const ForkToken token;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(!token.valid() && ForkToken().valid() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(token.valid());
}

}  // namespace
}  // namespace levada
