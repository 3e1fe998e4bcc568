// Decides which files in a folder to trust, by owner and permissions.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

namespace levada {

/// The permissions of a new file before the umask: readable by all users, or by this user only.
inline constexpr mode_t readable_mode = 0666, private_mode = 0600;

struct FileOwner {
  uid_t user = 0;
  gid_t group = 0;
};

/// Returns the owner of files that this process creates in a folder; if it cannot create files there, returns nothing
/// and sets errno. The owner may differ from this process's: a network file system may map user ids (root_squash), and
/// a set-group-ID folder determines the group.
std::optional<FileOwner> owner_of_new_files(const std::string& folder);

/// Creates the folder and all missing parents with permissions 0700, or, inside a folder that its group shares (see
/// FolderTrust), with that folder's permissions. Returns 0 if the folder exists afterwards, otherwise the errno of the
/// first failure.
int create_private_folder(const std::string& path);

/// Decides which files in a folder are trusted, by the folder's owner and permissions:
/// - a folder of this user, or of root: files of this user and of the folder's owner that no other user may write to;
/// - a folder that its group may write to and whose files get its group (set-group-ID, mode 2770), if this process is
///   in that group, or the folder is this user's or root's: all files of that group that others may not write to;
/// - a folder that this process may not write to: files of the folder's owner that no other user may write to.
/// "This user" means owner_of_new_files() of the folder, or the effective user if a full disk, for example, keeps that
/// unknown.
class FolderTrust {
 public:
  /// Throws SourceError for a folder in which other users can replace files. A folder that does not exist counts as
  /// this user's. `what` is the subject of the message, such as "the token cache"; `remedy` says how to choose another
  /// folder.
  static FolderTrust of(const std::string& folder, std::string_view what, std::string_view remedy);

  /// Returns whether the file is regular and trusted.
  bool covers(const struct stat& status) const;
  /// The same for an open file, or for a path. A symbolic link is not covered.
  bool covers(int fd) const;
  bool covers(const std::string& path) const;
  /// Returns the mode for an AtomicFile in the folder.
  mode_t file_mode() const { return group_ ? mode_t{S_ISGID | 0660} : private_mode; }
  /// Returns whether this process may not create files in the folder, or its file system cannot. A full disk or too
  /// many open files do not make a folder read-only.
  bool is_read_only() const { return is_read_only_; }

 private:
  uid_t user_ = 0, owner_ = 0;
  std::optional<gid_t> group_;  ///< set for a shared folder
  bool is_read_only_ = false;
};

/// Returns the content of a file; nothing if it cannot be read, `trust` does not cover it, or it has more than
/// `max_bytes`.
std::optional<std::string> read_trusted(const std::string& path, const FolderTrust& trust,
                                        std::size_t max_bytes = std::size_t{1} << 30);

}  // namespace levada
