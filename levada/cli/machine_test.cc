#include "levada/cli/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "levada/sources/scratch_dir_testing.h"

namespace levada::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Machine good_machine() {
  Machine machine;
  machine.cores = 16;
  machine.memory = machine.memory_limit = machine.memory_available = std::uint64_t{64} << 30;
  machine.open_files = 65536;
  machine.shmem_huge_pages = "advise";
  machine.memory_files = true;
  machine.pagemap_scan = "yes";
  machine.copy_gb_s = 10;
  machine.wake_us = 5;
  return machine;
}

ReadFile files(std::map<std::string, std::string> texts) {
  return [texts = std::move(texts)](const std::string& path) -> std::optional<std::string> {
    const auto found = texts.find(path);
    return found == texts.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(PlanOptions, NamesTheFastestLinkAndTheCopyRateOfAllCores) {
  auto machine = good_machine();
  machine.host_copy_gb_s = 23.456;
  EXPECT_EQ(plan_options_for(machine), "--memory 23.5GB/s");
  EXPECT_THAT(unmeasured_plan_options(machine),
              ElementsAre(HasSubstr("--link: "), HasSubstr("--message: "), HasSubstr("--storage, --step: ")));
  machine.links = {{"eth0", 25}, {"ib0", 200}, {"wlan0", 0.3}};
  machine.message_us = 12.3;
  EXPECT_EQ(plan_options_for(machine), "--link 200Gb/s --memory 23.5GB/s");
  EXPECT_THAT(unmeasured_plan_options(machine),
              ElementsAre(HasSubstr("200us over c10d and 10us over mpi, of which the system takes 12 us"),
                          HasSubstr("--step")));
}

TEST(Advice, IsEmptyOnAGoodMachine) {
  EXPECT_THAT(advice_for(good_machine()), ElementsAre());
}

TEST(Advice, ExplainsHowToEnableHugePages) {
  auto machine = good_machine();
  machine.shmem_huge_pages = "never";
  EXPECT_THAT(advice_for(machine), ElementsAre(HasSubstr("echo advise > /sys/kernel")));
}

TEST(Advice, ExplainsHowToRaiseMemlock) {
  auto machine = good_machine();
  machine.memlock = 8 << 20;
  EXPECT_THAT(advice_for(machine), ElementsAre(HasSubstr("only 8.0 MiB may be locked")));
}

TEST(Advice, ReportsAQuotaBelowTheCoreCount) {
  auto machine = good_machine();
  machine.core_quota = 8;
  EXPECT_THAT(advice_for(machine), ElementsAre(HasSubstr("allows 8 of 16 cores")));
  machine.core_quota = 16;
  EXPECT_THAT(advice_for(machine), ElementsAre());
}

TEST(Advice, ReportsFewCoresAndLittleMemory) {
  auto machine = good_machine();
  machine.cores = 2;
  machine.memory_available = 100 << 20;
  EXPECT_THAT(advice_for(machine), ElementsAre(HasSubstr("2 core(s)"), HasSubstr("100.0 MiB of memory is available")));
}

TEST(Advice, ExplainsWhyPrivateViewsBecomeCopies) {
  auto machine = good_machine();
  machine.pagemap_scan = "this kernel does not have it";
  EXPECT_THAT(advice_for(machine), ElementsAre(HasSubstr("(this kernel does not have it)")));
}

TEST(Advice, ReportsThatSharedMemoryIsRefused) {
  auto machine = good_machine();
  machine.memory_files = false;
  EXPECT_THAT(advice_for(machine), ElementsAre(HasSubstr("seccomp")));
}

TEST(Advice, ReportsSlowWakeupsAndFewDescriptors) {
  auto machine = good_machine();
  machine.wake_us = 120;
  machine.open_files = 256;
  EXPECT_THAT(advice_for(machine), ElementsAre(HasSubstr("only 256 files"), HasSubstr("120 us")));
}

TEST(CoreQuota, IsTheMinimumOfTheParentGroups) {
  EXPECT_EQ(core_quota(files({{"/proc/self/cgroup", "0::/a/b\n"},
                              {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
                              {"/sys/fs/cgroup/a/cpu.max", "250000 100000\n"},
                              {"/sys/fs/cgroup/cpu.max", "400000 100000\n"}})),
            2.5);
}

TEST(CoreQuota, ReadsVersion1Too) {
  EXPECT_EQ(core_quota(files({{"/proc/self/cgroup", "3:cpu,cpuacct:/job\n0::/\n"},
                              {"/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000\n"},
                              {"/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n"},
                              {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                              {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}})),
            1.5);
}

TEST(CoreQuota, IsEmptyWithoutALimit) {
  EXPECT_EQ(core_quota(files({})), std::nullopt);
  EXPECT_EQ(core_quota(files({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "max 100000\n"}})),
            std::nullopt);
}

TEST(ChosenWord, IsTheBracketedWord) {
  EXPECT_EQ(chosen_word("always within_size advise [never] deny force\n"), "never");
  EXPECT_EQ(chosen_word(""), "unknown");
  EXPECT_EQ(chosen_word("never"), "unknown");
}

TEST(NetworkLinks, ListsInterfacesThatReportTheirSpeed) {
  const ScratchDir folder;
  for (const char* name : {"ib0", "eth0", "veth1", "lo"}) std::filesystem::create_directory(folder.file(name));
  folder.write("ib0/speed", "200000\n");
  folder.write("eth0/speed", "2500\n");
  folder.write("veth1/speed", "-1\n");
  EXPECT_THAT(network_links(folder.path()), ElementsAre(NetworkLink{"eth0", 2.5}, NetworkLink{"ib0", 200}));
  EXPECT_THAT(network_links(folder.file("missing")), ElementsAre());
}

TEST(Machine, ExaminationTakesAboutASecond) {
  const auto machine = examine_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory, 0u);
  EXPECT_GE(machine.memory, machine.memory_limit);
  EXPECT_GT(machine.copy_gb_s, 0);
  EXPECT_GT(machine.wake_us, 0);
  EXPECT_FALSE(machine.pagemap_scan.empty());
}

}  // namespace
}  // namespace levada::cli
