// A file that has its name only when it is whole.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "levada/base/bytes.h"
#include "levada/base/unique_fd.h"

namespace levada {

/// Is written as `.NAME.partial` in the same folder, and then takes the place of what had the name before. If it is
/// destroyed sooner, it leaves nothing; what a killed process left is taken over by the next one that writes the file.
/// What is large goes to the disk while it is written, and leaves the system's cache. One thread at a time. What goes
/// wrong, a full disk too, is a SourceError that names the file.
class AtomicFile {
 public:
  /// Writes some of the bytes, as ::write does.
  using Write = std::function<ssize_t(int fd, const void* bytes, std::size_t size)>;

  /// Throws also if another process is writing the same file. `write` is another one for tests.
  explicit AtomicFile(std::string path, Write write = {});
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const { return path_; }
  void write(ByteView bytes);
  /// Returns once everything written is on the disk.
  void sync();
  /// Gives it its name, for good: call sync() before.
  void publish();

 private:
  void open();
  void start_stretch();
  [[noreturn]] void fail(std::string_view what, int error) const;

  std::string path_, partial_;
  Write write_;
  UniqueFd fd_;
  std::uint64_t written_ = 0, started_ = 0;
};

/// Makes what was renamed or removed in the folder of `path` last. Throws SourceError.
void sync_folder_of(const std::string& path);

}  // namespace levada
