// Folders that say whose files in them are to be trusted.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

namespace levada {

/// The permissions of a new file before the umask: for everybody, or for this user only.
inline constexpr mode_t readable_mode = 0666, private_mode = 0600;

/// Returns whose the files are that this process creates in a folder: a network file system may know it by another
/// number (root_squash). Empty if it can create none.
std::optional<uid_t> owner_of_new_files(const std::string& folder);

/// Creates the folder and all missing ones above it: with the permissions 0700, or for the group of a folder that is
/// shared, as FolderTrust has it. If that fails, nothing can be created in it either.
void create_private_folder(const std::string& path);

/// Who may decide what lies in a folder, by its owner and permissions:
/// - a folder of this user, or of root: files of this user and of the folder's owner that nobody else may write to;
/// - a folder that its group may write to and whose files get its group (set-group-ID, mode 2770): all files of that
///   group that others may not write to;
/// - a folder that this process may not write to: files of the folder's owner, that nobody else may write to.
/// This user is the owner_of_new_files() in the folder.
class FolderTrust {
 public:
  /// Throws SourceError, with a remedy, for a folder in which other users can replace files. One that does not exist is
  /// this user's. `what`: the subject of the message, such as "the token cache". `remedy`: how to choose another
  /// folder.
  static FolderTrust of(const std::string& folder, std::string_view what, std::string_view remedy);

  /// Whether it is a regular file that is trusted.
  bool covers(const struct stat& status) const;
  /// The same of an open file, and of what has this name. A symbolic link is not covered.
  bool covers(int fd) const;
  bool covers(const std::string& path) const;
  /// The mode of an AtomicFile in the folder.
  mode_t file_mode() const { return group_ ? mode_t{S_ISGID | 0660} : private_mode; }
  /// Whether this process can create no file in the folder.
  bool is_read_only() const { return is_read_only_; }

 private:
  uid_t user_ = 0, owner_ = 0;
  std::optional<gid_t> group_;  ///< of a shared folder
  bool is_read_only_ = false;
};

}  // namespace levada
