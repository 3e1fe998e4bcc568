#include "levada/base/memory_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/error.h"

namespace levada {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  return number;
}

/// Returns the number after `name` in lines such as "MemTotal:  123 kB" or "inactive_file 123".
std::optional<std::uint64_t> field(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    std::string value;
    if (words >> word >> value && word == name) return parse_number(value);
  }
  return std::nullopt;
}

struct Mount {
  std::string root;   ///< root of the hierarchy, as seen from this process
  std::string point;  ///< mount point
  bool v2 = false;
};

/// Returns the mounts of cgroup v2 and of v1's memory controller, from /proc/self/mountinfo.
std::vector<Mount> cgroup_mounts(const std::string& mountinfo) {
  std::vector<Mount> mounts;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string skip;
    Mount mount;
    words >> skip >> skip >> skip >> mount.root >> mount.point;
    while (words >> skip && skip != "-") {
    }
    std::string type;
    std::string source;
    std::string options;
    words >> type >> source >> options;
    mount.v2 = type == "cgroup2";
    const bool v1_memory = type == "cgroup" && ("," + options + ",").find(",memory,") != std::string::npos;
    if (mount.v2 || v1_memory) mounts.push_back(mount);
  }
  return mounts;
}

/// Returns this process's group in the v2 hierarchy or in v1's memory hierarchy, from /proc/self/cgroup.
std::optional<std::string> group_path(const std::string& groups, bool v2) {
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool wanted = v2 ? line.starts_with("0::") : controllers.find(",memory,") != std::string::npos;
    if (wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

void lower_to(MemoryLimits& limits, const ReadFile& read, const std::string& folder, bool v2) {
  const auto limit_text = read(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!limit_text) return;
  const auto limit = parse_number(*limit_text);  // "max" is not a number
  if (!limit) return;
  limits.total = std::min(limits.total, *limit);
  const auto usage = parse_number(read(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(""));
  const auto stat = read(folder + "/memory.stat").value_or("");
  // Like the kernel's MemAvailable. Pages that were read twice are active, and yet they are reclaimed before any
  // process is killed.
  const std::string prefix = v2 ? "" : "total_";
  const auto cache =
      field(stat, prefix + "inactive_file").value_or(0) + field(stat, prefix + "active_file").value_or(0);
  const std::uint64_t used = usage.value_or(0) - std::min(usage.value_or(0), cache);
  limits.available = std::min(limits.available, *limit - std::min(*limit, used));
}

}  // namespace

std::optional<std::string> read_system_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

MemoryLimits memory_limits(const ReadFile& read) {
  MemoryLimits limits{unlimited, unlimited};
  if (const auto machine = read("/proc/meminfo")) {
    if (const auto total = field(*machine, "MemTotal:")) limits.total = *total * 1024;
    if (const auto available = field(*machine, "MemAvailable:")) limits.available = *available * 1024;
  }
  const std::string groups = read("/proc/self/cgroup").value_or("");
  for (const Mount& mount : cgroup_mounts(read("/proc/self/mountinfo").value_or(""))) {
    std::string path = group_path(groups, mount.v2).value_or("/");
    if (mount.root != "/" && path.starts_with(mount.root)) path = path.substr(mount.root.size());
    while (true) {
      if (path == "/") path.clear();
      lower_to(limits, read, mount.point + path, mount.v2);
      if (path.empty()) break;
      const auto parent = path.rfind('/');
      path = parent == std::string::npos ? "" : path.substr(0, parent);
    }
  }
  return limits;
}

void expect_memory(std::uint64_t bytes, const MemoryLimits& limits, std::string_view what, std::string_view remedy) {
  if (bytes <= limits.available) return;
  throw InvalidArgument(fmt::format(
      "{} takes about {} of memory, but only {} of the {} that the machine and this process's control groups "
      "allow are available: allow it more memory{}",
      what, format_bytes(bytes), format_bytes(limits.available), format_bytes(limits.total), remedy));
}

std::uint64_t unused_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  const std::uint64_t pages = parse_number(read_system_file("/proc/self/statm").value_or("")).value_or(0);
  const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used);
}

Budget::Budget(std::uint64_t total) {
  constexpr std::uint64_t min_margin = 32u << 20;
  margin_ = std::min(std::max(total / 50, min_margin), total / 4);
  max_ = total - margin_;
}

void Budget::spend(std::uint64_t bytes) {
  granted_ -= std::min(bytes, granted_);
  spent_ += bytes;
}

void Budget::refresh(std::uint64_t bytes, std::uint64_t available, Reading before) {
  constexpr std::uint64_t max_ahead = 64u << 20;
  granted_ = 0;
  const std::uint64_t reserved = margin_ + (spent_ - before.settled);
  if (available < reserved || available - reserved < bytes) return;
  granted_ = bytes + std::min((available - reserved - bytes) / 16, max_ahead);
}

}  // namespace levada
