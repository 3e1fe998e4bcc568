// Finds the pages of a private mapping that this process has written.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/base/unique_fd.h"

namespace levada::shm {

/// Finds the pages in private mappings of files that writes have made private to this process. Usable only in the
/// process that created it, not in forked children. Thread-safe.
class WrittenPages {
 public:
  enum class Mode {
    any,      ///< first of the following that works
    scan,     ///< ioctl PAGEMAP_SCAN, from Linux 6.7 on
    pagemap,  ///< reading /proc/self/pagemap
  };
  explicit WrittenPages(Mode mode = Mode::any);

  /// Returns why written pages cannot be found on this system; empty if they can.
  const std::string& refusal() const { return refusal_; }

  /// Drops the written pages of `memory`, which consists of whole pages, so that they show the file again. Returns
  /// their number, or nothing if the system refuses, possibly after dropping some.
  std::optional<std::size_t> drop(std::span<std::byte> memory) const;

 private:
  using Found = std::optional<std::vector<std::span<std::byte>>>;
  std::string probe();
  Found find(std::span<std::byte> memory) const;
  Found scan(std::span<std::byte> memory) const;
  Found read(std::span<std::byte> memory) const;

  UniqueFd pagemap_;
  Mode mode_;
  std::string refusal_;
};

}  // namespace levada::shm
