// Files that hold what was derived from data, so that later starts need not read that data again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levada/base/hash.h"
#include "levada/base/private_files.h"

namespace levada {

/// A folder of such files. They are named by a key that identifies the data, and can be removed at any time. Only files
/// that FolderTrust covers count. The folder may be shared by processes and hosts. Thread-safe.
class KnownFiles {
 public:
  /// Extension of the files.
  static constexpr std::string_view extension = ".known";
  /// Results that take fewer bytes to read are not worth a file.
  static constexpr std::uint64_t large = std::uint64_t{4} << 20;

  /// `dir` need not exist. If it is empty, there are no files.
  explicit KnownFiles(std::string dir) : dir_(std::move(dir)) {}

  bool has_folder() const { return !dir_.empty(); }
  /// Returns the path of the file of this kind for a key.
  std::string path_of(std::string_view kind, const Digest& key) const;
  /// Returns the trust in the folder; nothing if other users can replace files in it.
  std::optional<FolderTrust> trust() const;
  /// Creates the folder if it is missing. Returns nothing if this process cannot create files in it.
  std::optional<FolderTrust> trust_for_writing() const;

  /// Records that a file was used now.
  static void note_use(const std::string& path) noexcept;
  /// Removes files of `dir` that no start has used for 30 days.
  static void remove_unused(const std::string& dir, const FolderTrust& trust) noexcept;

 private:
  std::string dir_;
};

}  // namespace levada
