// Files as sources see them: random-access reads, and an identity that reveals changes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "levada/base/error.h"
#include "levada/base/private_files.h"

namespace levada {

/// Identifies a file and its content.
struct FileIdentity {
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;  ///< since 1970
  /// Change time (ctime), which also changes with permissions, names and owners, and which no program can set back. 0
  /// if the storage has none.
  std::int64_t changed_ns = 0;
  std::uint64_t device = 0, inode = 0;
  bool linked = true;                ///< whether it still has a name: not removed, nothing renamed over it
  std::uint32_t group = 0;           ///< the group's id
  std::uint32_t permissions = 0600;  ///< the mode's lowest nine bits; the default for remote files
  std::string tag;  ///< remote storage's identifier of this content (ETag, generation, checksum); empty if none
};

/// A file could not be opened or read. Carries the errno.
class StorageFault : public SourceError {
 public:
  StorageFault(int error, const std::string& message) : SourceError(message), error_(error) {}
  /// Returns the errno.
  int error() const noexcept { return error_; }

 private:
  int error_;
};

/// An open file of fixed content. Thread-safe. Tests and wrappers (throttled, retrying, failing) derive from it.
class File {
 public:
  virtual ~File() = default;

  /// Returns the path as the user wrote it, made printable(): for messages.
  virtual const std::string& path() const = 0;
  /// Fills the front of `into` with the bytes at `offset` and returns their number: perhaps fewer than requested, zero
  /// only at the end. Throws SourceError.
  virtual std::size_t read(std::uint64_t offset, std::span<char> into) const = 0;
  /// Returns the file's current identity. Throws SourceError.
  virtual FileIdentity identity() const = 0;
  /// Announces that these bytes will be read soon, after those announced before. Does nothing unless the file is read
  /// ahead.
  virtual void will_read(std::uint64_t /*offset*/, std::uint64_t /*bytes*/) const {}
};

/// Returns whether the name begins with a scheme, such as s3://.
bool is_url(std::string_view path);

/// Opens a regular file for reading. Any number of files may be open: their Descriptors are closed and reopened as
/// needed, and SourceError is thrown for a file that was replaced in between. Throws SourceError for a path that does
/// not exist, is not readable, or is not a regular file.
std::unique_ptr<File> open_file(const std::string& path);
/// Does the same for a file that determines the training data. Rejects symbolic links and files that `trust` does not
/// cover. Checks the descriptor that is read, so replacing the name later has no effect.
std::unique_ptr<File> open_trusted_file(const std::string& path, const FolderTrust& trust);

/// Reads until `into` is full or the file ends, and returns the number of bytes. Throws SourceError.
std::size_t read_fully(const File& file, std::uint64_t offset, std::span<char> into);

/// Throws SourceError that names the change if the size, the modification time or the tag of `file` differs from
/// `before`, or the file is gone. Returns the current identity. Does not detect a program that resets the modification
/// time; ContentWatch does.
FileIdentity expect_unchanged(const File& file, const FileIdentity& before);
/// Throws the SourceError for a file that was written to.
[[noreturn]] void fail_written(const File& file);

}  // namespace levada
