// Limits how many files a process holds open.
#pragma once

#include <memory>
#include <string>

#include "levada/base/unique_fd.h"

namespace levada {

/// Opens a file for reading, with additional `flags` of open(2), without waiting for the writer of a pipe. Returns
/// nothing, with errno set, if it cannot be opened. If the process is out of descriptors, first closes those held by
/// Descriptor objects.
std::shared_ptr<const UniqueFd> open_for_reading(const std::string& path, int flags = 0);

/// A file's descriptor, which may be closed while it is not in use. All files of the process together keep at most a
/// quarter of its descriptor limit (RLIMIT_NOFILE) open; the least recently used are closed first. Thread-safe,
/// including in a forked process.
class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  /// Returns nothing if it has been closed. The file stays open as long as the returned pointer.
  std::shared_ptr<const UniqueFd> get();
  void keep(std::shared_ptr<const UniqueFd> fd);
  void close();

 private:
  friend class OpenFiles;
  // Guarded by the lock of OpenFiles.
  std::shared_ptr<const UniqueFd> fd_;
  Descriptor *newer_ = nullptr, *older_ = nullptr;
};

}  // namespace levada
