// How much memory this process may still take: the machine's, and the control groups' it is in.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace levada::shm {

struct MemoryLimits {
  std::uint64_t total = 0;      ///< that could ever be taken
  std::uint64_t available = 0;  ///< of it, at the moment
};

/// The text of a file of /proc or /sys; empty when it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_system_file(const std::string& path);

/// The least of what /proc/meminfo, and every control group (v1 or v2) above this process, allow. A group's file cache
/// that is not in use counts as available. Both numbers are the largest possible where nothing can be read.
MemoryLimits memory_limits(const ReadFile& read = read_system_file);

/// Grants memory as long as there is some. Shared pages beyond a control group's limit do not give an error: they end
/// the process; so a part is never granted. One thread at a time.
class Budget {
 public:
  explicit Budget(std::function<MemoryLimits()> limits = [] { return memory_limits(); });

  std::uint64_t total() const { return total_; }
  /// Whether `bytes` more may be touched now. Asks the system only once in a while.
  bool allows(std::uint64_t bytes);
  /// Says that they are about to be touched.
  void spend(std::uint64_t bytes);

 private:
  std::function<MemoryLimits()> limits_;
  std::uint64_t total_ = 0;
  std::uint64_t margin_ = 0;
  std::uint64_t granted_ = 0;
};

}  // namespace levada::shm
