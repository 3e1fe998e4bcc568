#include <fmt/format.h>

#include "levada/base/bytes.h"
#include "levada/cli/machine.h"

namespace levada::cli {
namespace {

using Advice = std::optional<std::string>;

Advice on_memory_files(const Machine& machine) {
  if (machine.memory_files) return {};
  return "memfd_create is refused, so the shm engine cannot run: allow it in the container's seccomp profile";
}

Advice on_cores(const Machine& machine) {
  const double cores = std::min<double>(machine.cores, machine.core_quota.value_or(machine.cores));
  if (cores >= 4) return {};
  return fmt::format(
      "this process may use only {:.3g} core(s): with more ranks than cores, each step waits for the scheduler; give "
      "the container more cores, or start fewer ranks",
      cores);
}

Advice on_quota(const Machine& machine) {
  if (!machine.core_quota || *machine.core_quota >= machine.cores) return {};
  return fmt::format(
      "the control group allows {:.3g} of {} cores and pauses all ranks for up to 100 ms once the quota is used up: "
      "raise cpu.max (docker --cpus, Kubernetes limits.cpu)",
      *machine.core_quota, machine.cores);
}

Advice on_memory(const Machine& machine) {
  constexpr std::uint64_t little = std::uint64_t{1} << 30;
  if (machine.memory_available >= little) return {};
  return fmt::format(
      "only {} of memory is available, and shared batches count toward it: beyond the limit the kernel kills a rank; "
      "raise memory.max (docker --memory), or lower --depth or --batch",
      format_bytes(machine.memory_available));
}

Advice on_huge_pages(const Machine& machine) {
  const auto& mode = machine.shmem_huge_pages;
  if (mode != "never" && mode != "deny") return {};
  return fmt::format(
      "huge pages are off for shared memory ({}), which makes the first touch of batches slower: as root, "
      "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
      mode);
}

Advice on_memlock(const Machine& machine) {
  constexpr std::uint64_t enough = std::uint64_t{256} << 20;
  if (!machine.memlock || *machine.memlock >= enough) return {};
  return fmt::format(
      "only {} may be locked, so batches cannot be pinned for a device: ulimit -l unlimited (docker "
      "--ulimit memlock=-1)",
      format_bytes(*machine.memlock));
}

Advice on_pagemap(const Machine& machine) {
  if (machine.pagemap_scan == "yes") return {};
  return fmt::format(
      "PAGEMAP_SCAN cannot be used ({}), so private views of batches become copies: it requires Linux 6.7 or newer and "
      "access to /proc/self/pagemap",
      machine.pagemap_scan);
}

Advice on_open_files(const Machine& machine) {
  constexpr std::uint64_t enough = 1024;
  if (machine.open_files >= enough) return {};
  return fmt::format(
      "only {} files may be open at once, and each rank needs a few for every other rank: ulimit -n 4096",
      machine.open_files);
}

Advice on_wake(const Machine& machine) {
  constexpr double slow = 50;
  if (machine.wake_us <= slow) return {};
  return fmt::format(
      "waking a thread takes {:.0f} us, which every step pays: stop other work, or check the idle states of the "
      "virtual machine",
      machine.wake_us);
}

}  // namespace

std::vector<std::string> advice_for(const Machine& machine) {
  std::vector<std::string> advice;
  for (const auto& on : {on_memory_files, on_cores, on_quota, on_memory, on_huge_pages, on_memlock, on_pagemap,
                         on_open_files, on_wake}) {
    if (auto sentence = on(machine)) advice.push_back(std::move(*sentence));
  }
  return advice;
}

}  // namespace levada::cli
