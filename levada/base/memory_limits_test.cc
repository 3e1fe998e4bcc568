#include "levada/base/memory_limits.h"

#include <gtest/gtest.h>

#include <map>

#include "levada/base/error.h"

namespace levada {
namespace {

constexpr std::uint64_t mib = 1 << 20;

ReadFile files(std::map<std::string, std::string> texts) {
  texts.emplace("/proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\n");
  return [texts = std::move(texts)](const std::string& path) -> std::optional<std::string> {
    const auto at = texts.find(path);
    if (at == texts.end()) return std::nullopt;
    return at->second;
  };
}

constexpr const char* v2_mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* v1_mount =
    "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 23 0:29 /docker/ab12 /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";

TEST(MemoryLimits, AreTheMachinesWithoutControlGroups) {
  const MemoryLimits limits = memory_limits(files({}));
  EXPECT_EQ(limits.total, 1024 * mib);
  EXPECT_EQ(limits.available, 512 * mib);
}

TEST(MemoryLimits, AreTheTightestOfAllEnclosingGroups) {
  const MemoryLimits limits = memory_limits(files({
      {"/proc/self/mountinfo", v2_mount},
      {"/proc/self/cgroup", "0::/slice/job\n"},
      {"/sys/fs/cgroup/slice/job/memory.max", "max\n"},
      {"/sys/fs/cgroup/slice/memory.max", "209715200\n"},
      {"/sys/fs/cgroup/slice/memory.current", "104857600\n"},
      {"/sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 41943040\nactive_file 10485760\n"},
  }));
  EXPECT_EQ(limits.total, 200 * mib);
  EXPECT_EQ(limits.available, 150 * mib);
}

TEST(MemoryLimits, AreFoundInACgroupV1Container) {
  const MemoryLimits limits = memory_limits(files({
      {"/proc/self/mountinfo", v1_mount},
      {"/proc/self/cgroup", "9:cpu,cpuacct:/docker/ab12\n5:memory:/docker/ab12\n0::/x\n"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n"},
      {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "20971520\n"},
      {"/sys/fs/cgroup/memory/memory.stat",
       "inactive_file 0\ntotal_inactive_file 8388608\ntotal_active_file 2097152\n"},
  }));
  EXPECT_EQ(limits.total, 100 * mib);
  EXPECT_EQ(limits.available, 90 * mib);
}

TEST(MemoryLimits, UnlimitedCgroupV1IsNoLimit) {
  const MemoryLimits limits = memory_limits(files({
      {"/proc/self/mountinfo", v1_mount},
      {"/proc/self/cgroup", "5:memory:/docker/ab12\n"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "20971520\n"},
  }));
  EXPECT_EQ(limits.total, 1024 * mib);
  EXPECT_EQ(limits.available, 512 * mib);
}

TEST(MemoryLimits, AGroupAboveItsLimitHasNothingAvailable) {
  const MemoryLimits limits = memory_limits(files({
      {"/proc/self/mountinfo", v2_mount},
      {"/proc/self/cgroup", "0::/\n"},
      {"/sys/fs/cgroup/memory.max", "1048576\n"},
      {"/sys/fs/cgroup/memory.current", "2097152\n"},
  }));
  EXPECT_EQ(limits.available, 0U);
}

TEST(MemoryLimits, MalformedLimitsAreIgnored) {
  const MemoryLimits limits = memory_limits(files({
      {"/proc/self/mountinfo", "x\n\n1 2 3 - cgroup2\n30 23 0:26 / /g rw - cgroup2 cgroup2 rw\n"},
      {"/proc/self/cgroup", "::\n0::relative/path\nnothing\n"},
      {"/g/memory.max", "what\n"},
  }));
  EXPECT_EQ(limits.total, 1024 * mib);
}

TEST(MemoryLimits, RejectMoreThanIsAvailable) {
  const MemoryLimits limits{.total = 64 * mib, .available = 3 * mib};
  EXPECT_NO_THROW(expect_memory(3 * mib, limits, "indexing a.jsonl"));
  try {
    expect_memory(4 * mib, limits, "indexing a.jsonl", ", or choose a longer sequence");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "indexing a.jsonl takes about 4.0 MiB of memory, but only 3.0 MiB of the 64.0 MiB that the machine and "
        "this process's control groups allow are available: allow it more memory, or choose a longer sequence");
  }
}

TEST(Budget, KeepsAMarginBelowTheLimit) {
  Budget budget(10'000 * mib);
  EXPECT_EQ(budget.max(), 9'800 * mib);
  budget.refresh(4'900 * mib, 5'000 * mib, budget.reading());
  EXPECT_FALSE(budget.covers(1));
  budget.refresh(4'800 * mib, 5'000 * mib, budget.reading());
  EXPECT_TRUE(budget.covers(4'800 * mib));
}

TEST(Budget, GrantsMoreThanRequestedToReadTheLimitsLessOften) {
  Budget budget(10'000 * mib);
  int read = 0;
  for (int i = 0; i < 32; ++i) {
    if (!budget.covers(mib)) {
      ++read;
      budget.refresh(mib, 5'000 * mib, budget.reading());
    }
    budget.spend(mib);
    budget.settle(mib);
  }
  EXPECT_EQ(read, 1);
}

TEST(Budget, CountsPagesPopulatedWhileTheLimitsAreRead) {
  Budget budget(1'000 * mib);
  budget.refresh(100 * mib, 500 * mib, budget.reading());
  budget.spend(100 * mib);
  const auto before = budget.reading();
  budget.settle(100 * mib);  // after the limits were read
  budget.refresh(400 * mib, 500 * mib, before);
  EXPECT_FALSE(budget.covers(1)) << "the limits that were read do not show the 100 MiB yet";
  budget.refresh(360 * mib, 400 * mib, budget.reading());
  EXPECT_TRUE(budget.covers(360 * mib));
}

}  // namespace
}  // namespace levada
