#include "levada/base/host.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>

namespace levada {
namespace {

/// Returns the identity of a forked child that has called `change`; 0 if the system has refused the change, as it does
/// to all users but root.
std::uint64_t identity_of_child(const std::function<bool()>& change) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return 0;
  const pid_t child = ::fork();
  if (child == 0) {
    const std::uint64_t mine = change() ? host_identity() : 0;
    ::_exit(::write(ends[1], &mine, sizeof mine) == sizeof mine ? 0 : 1);
  }
  std::uint64_t identity = 0;
  EXPECT_EQ(::read(ends[0], &identity, sizeof identity), static_cast<ssize_t>(sizeof identity));
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  return identity;
}

TEST(HostIdentity, IsTheSameInAnotherProcess) {
  EXPECT_EQ(identity_of_child([] { return true; }), host_identity());
}

TEST(HostIdentity, DiffersInAnotherNetworkNamespaceAndForAnotherUser) {
  EXPECT_NE(identity_of_child([] { return ::unshare(CLONE_NEWNET) == 0; }), host_identity());
  EXPECT_NE(identity_of_child([] { return ::setuid(::getuid() + 1) == 0; }), host_identity());
}

}  // namespace
}  // namespace levada
