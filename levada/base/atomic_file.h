// A file that has its name only when it is whole.
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

/// Another process writes the file.
class FileBusy : public SourceError {
 public:
  using SourceError::SourceError;
};

/// A file could not be created, written or named: the disk is full, say.
class WriteFailed : public SourceError {
 public:
  WriteFailed(int error, const std::string& message) : SourceError(message), error_(error) {}
  bool is_disk_full() const noexcept;

 private:
  int error_;  ///< the errno
};

/// Is written as `.NAME.partial` in the same folder, and then takes the place of what had the name before. If it is
/// destroyed sooner, it leaves nothing; what a killed process left is removed by the next one that writes the file. The
/// partial file is always a new one of this process: nobody else can have made it, or hold it open. What is large goes
/// to the disk while it is written, and leaves the system's cache. One thread at a time. What goes wrong, a full disk
/// too, is a WriteFailed that names the file.
///
/// The permissions that it is created with are those of `mode` which the umask leaves. With S_ISGID they are all of
/// `mode`, and what a killed process of another user has left is removed, too: the folder is its group's.
class AtomicFile {
 public:
  /// Writes some of the bytes, as ::write does.
  using Write = std::function<ssize_t(int fd, const void* bytes, std::size_t size)>;

  /// Throws FileBusy if another process is writing the same file; also SourceError if another user's partial file is in
  /// the way. `mode`: permissions; the owner may always read and write. `write` is another one for tests.
  explicit AtomicFile(std::string path, Write write = {}, mode_t mode = readable_mode);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const { return path_; }
  void write(ByteView bytes);
  /// Returns once everything written is on the disk.
  void sync();
  /// Gives it its name, for good: call sync() before. `lasting` false: perhaps not for good, if power fails.
  void publish(bool lasting = true);

  /// Removes what killed processes have left in a folder of files with the names that `is_wanted` returns true for.
  /// Throws nothing: what cannot be removed stays.
  /// `of_any_user`: those of other users, too.
  static void remove_abandoned(const std::string& folder, const std::function<bool(std::string_view name)>& is_wanted,
                               bool of_any_user = false) noexcept;

  /// Removes the partial files of this process, for a signal handler that then ends it: async-signal-safe. Waits up to
  /// 0.3 s for one that is being created. Of more than 16 at a time some may stay.
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
  std::size_t slot_ = 0;  ///< in the list of remove_partial_files()
  std::uint64_t written_ = 0, started_ = 0;
};

/// Makes what was renamed or removed in the folder of `path` last. Throws SourceError.
void sync_folder_of(const std::string& path);

}  // namespace levada
