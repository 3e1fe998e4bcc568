// Files as sources see them: bytes at an offset, and a way to notice that they are no longer the same.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "levada/base/error.h"
#include "levada/base/private_files.h"

namespace levada {

/// What tells a file, and its content, from others.
struct FileIdentity {
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;  ///< since 1970
  /// No program can set it back. It also changes with permissions, names and owners; 0 where storage has none.
  std::int64_t changed_ns = 0;
  std::uint64_t device = 0, inode = 0;
  bool linked = true;                ///< still has a name: not removed, nothing renamed over it
  std::uint32_t permissions = 0666;  ///< the mode's lowest nine bits; of remote files the default
  std::string tag;  ///< what remote storage calls this content: an ETag, a generation, a checksum; empty if it has none
};

/// A file could not be opened or read: carries the errno.
class StorageFault : public SourceError {
 public:
  StorageFault(int error, const std::string& message) : SourceError(message), error_(error) {}
  /// The errno.
  int error() const noexcept { return error_; }

 private:
  int error_;
};

/// An open file of fixed content. Any thread may call. Tests and wrappers (throttled, retrying, failing) derive from
/// it.
class File {
 public:
  virtual ~File() = default;

  /// As the user named it, made printable(): for messages.
  virtual const std::string& path() const = 0;
  /// Fills the front of `into` with the bytes at `offset` and returns how many: perhaps fewer than requested, zero only
  /// at the end. Throws SourceError.
  virtual std::size_t read(std::uint64_t offset, std::span<char> into) const = 0;
  /// Returns the file's current identity. Throws SourceError.
  virtual FileIdentity identity() const = 0;
  /// Announces that these bytes will be read soon, after those announced before. Does nothing unless the file is read
  /// ahead.
  virtual void will_read(std::uint64_t /*offset*/, std::uint64_t /*bytes*/) const {}
};

/// Whether the name begins with a scheme, such as s3://.
bool is_url(std::string_view path);

/// Opens a regular file for reading. Any number may be open: their Descriptors are closed and opened again as needed,
/// and a file that has been replaced meanwhile is a SourceError. Throws SourceError for a path that does not exist, may
/// not be read, or is not a regular file.
std::unique_ptr<File> open_file(const std::string& path);
/// The same for a file that decides what is trained on. Refuses a symbolic link, and a file that `trust` does not
/// cover: on the descriptor that is read, so that a name which is replaced later makes no difference.
std::unique_ptr<File> open_trusted_file(const std::string& path, const FolderTrust& trust);

/// Reads until `into` is full or the file ends; returns the number of bytes. Throws SourceError.
std::size_t read_fully(const File& file, std::uint64_t offset, std::span<char> into);

/// Throws SourceError, naming the change, if the size, the time of writing or the tag of `file` is no longer that of
/// `before`, or the file is gone. Returns the current identity. A program that sets the time of writing back is not
/// noticed: ContentWatch does.
FileIdentity expect_unchanged(const File& file, const FileIdentity& before);
/// Throws the SourceError of a file that was written to.
[[noreturn]] void fail_written(const File& file);

}  // namespace levada
