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

/// Another process is writing the file.
class FileBusy : public SourceError {
 public:
  using SourceError::SourceError;
};

/// A file could not be created, written or renamed, for example because the disk is full.
class WriteFailed : public SourceError {
 public:
  WriteFailed(int error, const std::string& message) : SourceError(message), error_(error) {}
  bool is_disk_full() const noexcept;
  /// Whether this user may not write there, or nobody may.
  bool is_denied() const noexcept;

 private:
  int error_;  ///< the errno
};

/// Writes `.NAME.partial` in the same folder, then replaces the previous file of that name. If the object is destroyed
/// before that, it leaves nothing behind; a partial file of a killed process is removed by the next process that writes
/// the file. This process always creates the partial file itself, so no other process can have written it or hold it
/// open. Large files are flushed to the disk while they are written, and dropped from the page cache. One thread at a
/// time. Every failure, including a full disk, is a WriteFailed that names the file.
///
/// The file's permissions are `mode` masked by the umask. With S_ISGID they are exactly `mode`, and partial files that
/// killed processes of other users have left are removed, too: the folder belongs to its group.
class AtomicFile {
 public:
  /// Writes some of the bytes, like ::write.
  using Write = std::function<ssize_t(int fd, const void* bytes, std::size_t size)>;

  /// Throws FileBusy if another process is writing the same file, and SourceError if another user's partial file is in
  /// the way. `mode`: the permissions; the owner may always read and write. `write` replaces ::write in tests.
  explicit AtomicFile(std::string path, Write write = {}, mode_t mode = readable_mode);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const { return path_; }
  void write(ByteView bytes);
  /// Returns once everything written is on the disk.
  void sync();
  /// Renames the file into place. Call sync() first. If `lasting` is false, a power failure may undo the rename.
  void publish(bool lasting = true);

  /// Removes partial files of killed processes from a folder, if `is_wanted` returns true for the file's final name.
  /// `of_any_user`: those of other users, too. Files that cannot be removed stay.
  static void remove_abandoned(const std::string& folder, const std::function<bool(std::string_view name)>& is_wanted,
                               bool of_any_user = false) noexcept;

  /// Removes this process's partial files. Async-signal-safe, for a signal handler that then ends the process. Waits up
  /// to 0.3 s for a file that is being created. With more than 16 partial files at a time, some may stay.
  static void remove_partial_files() noexcept;

 private:
  bool is_for_group() const { return (mode_ & S_ISGID) != 0; }
  void open();
  UniqueFd create() const;
  void make_way() const;
  void give_name();
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
