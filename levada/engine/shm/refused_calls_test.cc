// System calls that an older or a stricter system refuses, simulated with seccomp.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "levada/base/error.h"
#include "levada/base/unique_fd.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/engine/shm/memory_files_testing.h"

namespace levada::shm {
namespace {

enum class Bits { set, missing };

/// Makes this process's calls with that number fail if `bits` of the second argument are set, or missing.
void refuse(int number, std::uint32_t bits, int error, Bits where = Bits::set) {
  const auto fail = SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error);
  const std::uint8_t skip_if_equal = where == Bits::missing, skip_if_not = where == Bits::set;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + sizeof(std::uint64_t)),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, bits, skip_if_equal, skip_if_not),
      BPF_STMT(BPF_RET | BPF_K, fail),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof filter / sizeof filter[0], filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    throw EngineError("this test needs seccomp");
  }
}

/// Returns the error of a single rank's start when a call is refused; empty if it starts.
std::string start_without(int number, std::uint32_t bits, int error, Bits where = Bits::set) {
  test::ForkedRanks ranks(1, [&](int) {
    refuse(number, bits, error, where);
    static_cast<void>(meet(0, 1, {"alone", {}}, {.memory_bytes = 1 << 20}));
  });
  return ranks.wait()[0].error;
}

constexpr std::uint32_t noexec_seal = 8;

TEST(RefusedCalls, StartWithoutTheSealOnOlderKernels) {
  EXPECT_EQ(start_without(SYS_memfd_create, noexec_seal, EINVAL), "");
}

TEST(RefusedCalls, SealFilesIfTheSystemRequiresIt) {
  const UniqueFd file(::memfd_create("seal", noexec_seal));
  if (!file) return;  // The kernel is older than the seal.
  EXPECT_EQ(start_without(SYS_memfd_create, noexec_seal, EACCES, Bits::missing), "");
}

TEST(RefusedCalls, SealDataFilesIfTheyCannotBeReopenedReadOnly) {
  constexpr std::size_t memory_bytes = 1 << 20;
  auto links = make_links(2);
  test::ForkedRanks ranks(2, [&](int rank) {
    auto own = std::move(links[static_cast<std::size_t>(rank)]);
    links.clear();
    refuse(SYS_openat, 0, EACCES);  // as without /proc
    const auto engine = join(rank, 2, std::move(own), {.memory_bytes = memory_bytes});
    const auto files = test::count_memory_files(memory_bytes);
    if (files.all != 2) throw EngineError("there are not two data files");
    if (files.writable != 0) throw EngineError("a data file can be mapped writable");
  });
  links.clear();
  for (const auto& ending : ranks.wait()) EXPECT_EQ(ending.error, "");
}

TEST(RefusedCalls, FailTheStartIfDeathsCannotBeDetected) {
  for (const int number : {SYS_get_robust_list, SYS_set_robust_list}) {
    const auto error = start_without(number, 0, ENOSYS);
    EXPECT_NE(error.find("does not report the death of a rank"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace levada::shm
