#include "levada/engine/memory_source.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/sizes_testing.h"

namespace levada {
namespace {

std::uint64_t resident_pages(std::span<std::byte> memory) {
  std::vector<unsigned char> pages(memory.size() / page);
  if (::mincore(memory.data(), memory.size(), pages.data()) != 0) return 0;
  std::uint64_t count = 0;
  for (const unsigned char each : pages) count += each & 1U;
  return count;
}

TEST(HeapSource, IsResidentOnlyWherePopulated) {
  HeapSource heap(100 * page);
  ASSERT_EQ(heap.memory().size(), 100 * page);
  EXPECT_EQ(resident_pages(heap.memory()), 0U);
  ASSERT_TRUE(heap.populate({10 * page, 30 * page}));
  EXPECT_EQ(resident_pages(heap.memory()), 20U);
  std::memset(heap.memory().data() + 10 * page, 1, 20 * page);
  ASSERT_TRUE(heap.discard({15 * page, 30 * page}));
  EXPECT_EQ(resident_pages(heap.memory()), 5U);
  EXPECT_EQ(heap.memory()[15 * page - 1], std::byte{1});
}

TEST(HeapSource, MayBePopulatedAgain) {
  HeapSource heap(10 * page);
  ASSERT_TRUE(heap.populate({0, 10 * page}));
  heap.memory()[5 * page] = std::byte{1};
  ASSERT_TRUE(heap.discard({0, 10 * page}));
  ASSERT_TRUE(heap.populate({4 * page, 6 * page}));
  EXPECT_EQ(heap.memory()[5 * page], std::byte{0});
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Returns the bytes of this process that count toward RLIMIT_DATA.
std::uint64_t data_in_use() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) return std::stoull(line.substr(7)) * 1024;
  }
  return 0;
}

bool holds_in_a_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(HeapSource, LeavesRoomInALimitedAddressSpace) {
  EXPECT_TRUE(holds_in_a_child([] {
    const rlimit limit{std::size_t{1} << 30, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return false;
    const HeapSource first(std::uint64_t{1} << 40), second(std::uint64_t{1} << 40);
    return first.memory().size() >= 64 * mib && second.memory().size() >= 64 * mib &&
           first.memory().size() + second.memory().size() <= 256 * mib;
  }));
}

TEST(HeapSource, NamesTheLimitToRaiseIfAddressSpaceIsExhausted) {
  EXPECT_TRUE(holds_in_a_child([] {
    const rlimit limit{0, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return false;
    try {
      const HeapSource heap(mib);
      return false;
    } catch (const EngineError& error) {
      return std::strstr(error.what(), "ulimit -v") != nullptr;
    }
  }));
}

TEST(HeapSource, DoesNotPopulateBeyondTheDataLimit) {
  EXPECT_TRUE(holds_in_a_child([] {
    HeapSource heap(1024 * mib);
    const rlimit limit{data_in_use() + 64 * mib, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_DATA, &limit) != 0) return false;
    return !heap.populate({0, 256 * mib}) && heap.populate({0, mib});
  }));
}
#endif

}  // namespace
}  // namespace levada
