// Which pages of a private mapping this process has written.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/base/unique_fd.h"

namespace levada::shm {

/// Looks for pages that a write has made the process's own, in private mappings of files. For the process that made it,
/// not its forked children. Any thread.
class WrittenPages {
 public:
  enum class Way {
    any,      ///< the first of these that works
    scan,     ///< ioctl PAGEMAP_SCAN, from Linux 6.7 on
    pagemap,  ///< reading /proc/self/pagemap
  };
  explicit WrittenPages(Way way = Way::any);

  /// Why pages cannot be found here; empty where they can.
  const std::string& refusal() const { return refusal_; }

  /// Lets the written ones of `memory`, whole pages, show the file again; how many there were. Empty where the system
  /// refuses, which it may do in the middle.
  std::optional<std::size_t> drop(std::span<std::byte> memory) const;

 private:
  using Found = std::optional<std::vector<std::span<std::byte>>>;
  std::string try_out();
  Found find(std::span<std::byte> memory) const;
  Found scan(std::span<std::byte> memory) const;
  Found read(std::span<std::byte> memory) const;

  UniqueFd pagemap_;
  Way way_;
  std::string refusal_;
};

}  // namespace levada::shm
