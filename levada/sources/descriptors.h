// How many files a process holds open.
#pragma once

#include <memory>
#include <string>

#include "levada/base/unique_fd.h"

namespace levada {

/// Opens a file for reading, with further `flags` of open(2), without waiting for the writer of a pipe. Empty, with
/// errno set, if it cannot be opened; what other Descriptors hold open is closed first if the process may open no more.
std::shared_ptr<const UniqueFd> open_for_reading(const std::string& path, int flags = 0);

/// A file's descriptor, which may be closed while it is not used. All files of the process together keep at most a
/// quarter of the descriptors that it may have (RLIMIT_NOFILE); the least recently used are closed first. Any thread
/// may call, also in a process that was forked.
class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  /// Empty if it has been closed. The file stays open as long as what this returns.
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
