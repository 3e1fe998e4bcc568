// How much memory this process may still use, by the limits of the machine and of its control groups.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace levada {

struct MemoryLimits {
  std::uint64_t total = 0;      ///< maximum that could ever be used
  std::uint64_t available = 0;  ///< part of `total` that is free now
};

/// Returns the text of a file in /proc or /sys, or nothing if it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_system_file(const std::string& path);

/// Returns the smallest of the limits in /proc/meminfo and of every control group (v1 or v2) that contains this
/// process. A group's file cache counts as available. If nothing can be read, both numbers are the largest
/// possible. Reads about a dozen files, which takes 0.2 to 1 ms; do not call it with a lock held.
MemoryLimits memory_limits(const ReadFile& read = read_system_file);

/// Throws InvalidArgument if `bytes` exceeds `limits.available`, because the kernel kills a process that uses more than
/// its control group allows. `what` is the subject of the message, such as "indexing a.jsonl"; `remedy` follows "allow
/// it more memory".
void expect_memory(std::uint64_t bytes, const MemoryLimits& limits, std::string_view what,
                   std::string_view remedy = {});

/// Returns how much of its limited address space (ulimit -v) this process does not use, or the largest possible number
/// if there is no limit.
std::uint64_t unused_address_space();

/// Decides how much memory may be made resident. If a process exceeds its control group's limit, no call fails: the
/// kernel kills the process. The budget therefore reserves a margin below the limit that it never grants: 2%, but at
/// least 32 MiB and at most a quarter of the limit. Does not read the limits itself. Not thread-safe.
class Budget {
 public:
  /// `total`: MemoryLimits::total.
  explicit Budget(std::uint64_t total);

  /// Returns the maximum that can ever be granted.
  std::uint64_t max() const { return max_; }

  /// Returns whether `bytes` are already granted. If not, call reading(), read the limits, call refresh(), and ask
  /// again.
  bool covers(std::uint64_t bytes) const { return bytes <= granted_; }
  /// Consumes the grant of `bytes` that are about to become resident.
  void spend(std::uint64_t bytes);
  /// Records that `bytes` that were spent have become resident or never will. The next reading of the limits shows
  /// which.
  void settle(std::uint64_t bytes) { settled_ += bytes; }

  /// The bytes settled before the limits are read.
  struct Reading {
    std::uint64_t settled = 0;
  };
  Reading reading() const { return {settled_}; }
  /// Grants `bytes` and part of the rest, so that the limits are seldom read. Grants nothing if `bytes` are not
  /// available. `available` must have been read after `before` was taken; it may not reflect memory spent since then.
  void refresh(std::uint64_t bytes, std::uint64_t available, Reading before);

 private:
  std::uint64_t max_ = 0;
  std::uint64_t margin_ = 0;
  std::uint64_t granted_ = 0;
  std::uint64_t spent_ = 0;    ///< in total
  std::uint64_t settled_ = 0;  ///< part of `spent_`
};

}  // namespace levada
