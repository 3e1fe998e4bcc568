// A file that appears under its name only once it is complete.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/private_files.h"
#include "levada/base/unique_fd.h"

namespace levada {

/// Thrown if another process is writing the file.
class FileBusy : public SourceError {
 public:
  using SourceError::SourceError;
};

/// Thrown if a file cannot be created, written or renamed, for example because the disk is full.
class WriteFailed : public SourceError {
 public:
  WriteFailed(int error, const std::string& message) : SourceError(message), error_(error) {}
  bool is_disk_full() const noexcept;
  /// Returns whether this user lacks the permission to write there, or the file system is read-only.
  bool is_denied() const noexcept;

 private:
  int error_;  ///< the errno
};

/// Writes `.NAME.partial` in the same folder and then renames it over the previous file NAME. The destructor removes
/// the partial file unless publish() has renamed it. If the process is killed, the next process that writes the file
/// removes the partial file. This process always creates the partial file itself, so no other process can have written
/// to it or have it open. Large files are flushed to the disk while they are written, and dropped from the page cache.
/// Used by one thread at a time. Every failure, including a full disk, throws a WriteFailed that names the file.
///
/// The file's permissions are `mode` masked by the umask. If `mode` includes S_ISGID, the folder belongs to its group:
/// the permissions are exactly `mode`, and partial files left by killed processes of other users are removed, too.
class AtomicFile {
 public:
  /// Writes some or all of the bytes, like ::write.
  using Write = std::function<ssize_t(int fd, const void* bytes, std::size_t size)>;

  /// Throws FileBusy if another process is writing the same file, and SourceError if another user's partial file is in
  /// the way. `mode` is the file's permissions; the owner may always read and write. Tests pass a replacement of
  /// ::write.
  explicit AtomicFile(std::string path, Write write = {}, mode_t mode = readable_mode);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const { return path_; }
  void write(ByteView bytes);
  /// Blocks until everything written is on the disk.
  void sync();
  /// Renames the file into place. Call sync() first. If `lasting` is false, a power failure may undo the rename.
  void publish(bool lasting = true);

  /// Removes the partial files of killed processes from a folder if `is_wanted` returns true for the file's final name.
  /// `of_any_user`: whether to include those of other users. Ignores files that cannot be removed.
  static void remove_abandoned(const std::string& folder, const std::function<bool(std::string_view name)>& is_wanted,
                               bool of_any_user = false) noexcept;

  /// Removes this process's partial files. Async-signal-safe; for a signal handler that then ends the process. Waits up
  /// to 0.3 s for a file that is being created. With more than 16 partial files at a time, some may remain.
  static void remove_partial_files() noexcept;

 private:
  bool is_for_group() const { return (mode_ & S_ISGID) != 0; }
  void open();
  UniqueFd create() const;
  void remove_stale() const;
  void rename_into_place();
  void start_stretch();
  [[noreturn]] void fail(std::string_view what, int error) const;

  std::string path_, partial_;
  Write write_;
  mode_t mode_;
  UniqueFd fd_;
  std::size_t slot_ = 0;  ///< index in the list of remove_partial_files()
  std::uint64_t written_ = 0, started_ = 0;
};

/// Makes renames and removals in the folder of `path` durable. Throws SourceError.
void sync_folder_of(const std::string& path);

}  // namespace levada
