// Files and folders that one user alone can change.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

namespace levada {

/// The permissions of a new file before the umask: for everybody, or for this user only.
inline constexpr mode_t readable_mode = 0666, private_mode = 0600;

/// Whether it is a regular file of this user.
bool is_own(const struct stat& status);
/// The same of an open file.
bool is_own(int fd);
/// Whether it is_own(), and nobody else may write to it.
bool is_private(const struct stat& status);
bool is_private(int fd);

/// Creates the folder and all missing ones above it with the permissions 0700. If that fails, nothing can be created in
/// it either.
void create_private_folder(const std::string& path);

/// Throws SourceError with a remedy if other users can replace files in the folder: if it belongs to another user, who
/// is not root, or if others may write to it and it is not sticky, as /tmp is. A folder that does not exist passes.
/// `what`: the subject of the message, such as "the token cache". `remedy`: how to choose another folder.
void expect_private_folder(const std::string& path, std::string_view what, std::string_view remedy);

}  // namespace levada
