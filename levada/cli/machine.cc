#include "levada/cli/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/cli/measure.h"
#include "levada/engine/shm/memory.h"
#include "levada/engine/shm/written_pages.h"

namespace levada::cli {
namespace {

std::string text_of(const ReadFile& read, const std::string& path) {
  return read(path).value_or("");
}

std::string yes_or(const std::string& refusal) {
  return refusal.empty() ? "yes" : refusal;
}

std::uint64_t machine_memory(const ReadFile& read) {
  std::istringstream words(text_of(read, "/proc/meminfo"));
  std::string name;
  std::uint64_t kilobytes = 0;
  words >> name >> kilobytes;
  return kilobytes * 1024;
}

/// Returns the group of this process in the hierarchy of `controller` (v1), or in v2's if `controller` is empty.
std::optional<std::string> group_of(const ReadFile& read, const std::string& controller) {
  std::istringstream lines(text_of(read, "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto names = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool wanted = controller.empty() ? line.starts_with("0::") : names.find("," + controller + ",") != names.npos;
    if (wanted) return line.substr(second + 1);
  }
  return {};
}

std::string cgroup_versions(const ReadFile& read) {
  const bool v1 = group_of(read, "memory").has_value();
  const bool v2 = read("/sys/fs/cgroup/cgroup.controllers").has_value();
  if (v1) return v2 ? "v1 and v2" : "v1";
  return v2 ? "v2" : "none";
}

std::optional<double> quota_v2(const std::string& text) {
  std::istringstream words(text);
  double quota = 0;
  double period = 0;
  if (!(words >> quota >> period) || period <= 0) return {};  // "max 100000"
  return quota / period;
}

std::optional<double> quota_v1(const std::string& quota_text, const std::string& period_text) {
  std::istringstream words(quota_text + " " + period_text);
  double quota = 0;
  double period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return {};  // -1: no limit
  return quota / period;
}

/// Returns the minimum of `quota_at` over the group's folder and all folders above it.
std::optional<double> min_quota(std::string path,
                                const std::function<std::optional<double>(const std::string&)>& quota_at) {
  std::optional<double> least;
  while (true) {
    if (path == "/") path.clear();
    if (const auto quota = quota_at(path)) least = std::min(least.value_or(*quota), *quota);
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

std::optional<std::uint64_t> limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return {};
  return limit.rlim_cur;
}

bool gives_memory_files() {
  try {
    return static_cast<bool>(shm::make_memory_file("levada-doctor", 4096));
  } catch (const EngineError&) {
    return false;
  }
}

int usable_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

std::string chosen_word(const std::string& text) {
  const auto begin = text.find('[');
  const auto end = text.find(']', begin);
  return end == std::string::npos ? "unknown" : text.substr(begin + 1, end - begin - 1);
}

std::vector<NetworkLink> network_links(const std::string& folder) {
  std::vector<NetworkLink> links;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    std::istringstream words(text_of(read_system_file, (entry.path() / "speed").string()));
    double mb_s = 0;
    if (words >> mb_s && mb_s > 0) links.push_back({entry.path().filename().string(), mb_s / 1e3});
  }
  std::sort(links.begin(), links.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return links;
}

std::optional<double> core_quota(const ReadFile& read) {
  std::optional<double> least;
  const auto lower = [&least](std::optional<double> quota) {
    if (quota) least = std::min(least.value_or(*quota), *quota);
  };
  lower(min_quota(group_of(read, "").value_or("/"), [&](const std::string& path) {
    return quota_v2(text_of(read, "/sys/fs/cgroup" + path + "/cpu.max"));
  }));
  lower(min_quota(group_of(read, "cpu").value_or("/"), [&](const std::string& path) {
    const auto folder = "/sys/fs/cgroup/cpu" + path;
    return quota_v1(text_of(read, folder + "/cpu.cfs_quota_us"), text_of(read, folder + "/cpu.cfs_period_us"));
  }));
  return least;
}

std::string plan_options_for(const Machine& machine) {
  const auto fastest = std::max_element(machine.links.begin(), machine.links.end(),
                                        [](const auto& a, const auto& b) { return a.gb_s < b.gb_s; });
  const auto link = fastest == machine.links.end() ? std::string() : fmt::format("--link {:g}Gb/s ", fastest->gb_s);
  return link + fmt::format("--memory {:.3g}GB/s", machine.host_copy_gb_s);
}

std::vector<std::string> unmeasured_plan_options(const Machine& machine) {
  std::vector<std::string> sentences;
  if (machine.links.empty()) sentences.push_back("--link: no interface reports its speed; ask for the network's");
  const auto system =
      machine.message_us ? fmt::format(", of which the system takes {:.0f} us", *machine.message_us) : "";
  sentences.push_back(
      fmt::format("--message: measuring it takes two hosts; about 200us over c10d and 10us over mpi{}", system));
  sentences.push_back("--storage, --step: they depend on your storage and your model");
  return sentences;
}

Machine examine_machine() {
  const ReadFile read = read_system_file;
  Machine machine;
  utsname name{};
  if (::uname(&name) == 0) machine.kernel = name.release;
  machine.cores = usable_cores();
  machine.core_quota = core_quota(read);
  machine.memory = machine_memory(read);
  const auto limits = memory_limits();
  machine.memory_limit = limits.total;
  machine.memory_available = limits.available;
  machine.cgroups = cgroup_versions(read);
  machine.memlock = limit_of(RLIMIT_MEMLOCK);
  machine.open_files = limit_of(RLIMIT_NOFILE).value_or(UINT64_MAX);
  machine.shmem_huge_pages = chosen_word(text_of(read, "/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  machine.memory_files = gives_memory_files();
  machine.pagemap_scan = yes_or(shm::WrittenPages(shm::WrittenPages::Mode::scan).refusal());
  machine.copy_gb_s = measure_copy(1);
  const int usable = static_cast<int>(std::min<double>(machine.cores, machine.core_quota.value_or(machine.cores)));
  machine.host_copy_gb_s = measure_copy(std::clamp(usable, 1, 8));
  machine.wake_us = measure_wake();
  machine.message_us = measure_message();
  machine.links = network_links("/sys/class/net");
  return machine;
}

}  // namespace levada::cli
