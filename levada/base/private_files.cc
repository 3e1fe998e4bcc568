#include "levada/base/private_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/base/unique_fd.h"

namespace levada {
namespace {

constexpr mode_t written_by_others = S_IWGRP | S_IWOTH;
constexpr mode_t shared = S_ISGID | S_IWGRP;

bool is_in_group(gid_t group) {
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(::getgroups(0, nullptr), 0)));
  groups.resize(static_cast<std::size_t>(std::max(::getgroups(static_cast<int>(groups.size()), groups.data()), 0)));
  return group == ::getegid() || std::ranges::find(groups, group) != groups.end();
}

/// Returns whether the folder's group shares it. Any user can give a folder that mode, so it counts only if this
/// process is in the group, or if this user or root has set it. Root, who may write everywhere, is not in every group.
bool is_shared(const struct stat& folder) {
  const bool has_mode = (folder.st_mode & shared) == shared && (folder.st_mode & (S_IWOTH | S_ISVTX)) == 0;
  return has_mode && (folder.st_uid == ::geteuid() || folder.st_uid == 0 || is_in_group(folder.st_gid));
}

bool may_write_to(const std::string& folder) {
  return ::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

/// Returns whether an attempt to create a file failed because this process can never create one there. Other errors,
/// such as that of a full disk, can pass.
bool is_denial(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == ENOSYS || error == EOPNOTSUPP;
}

}  // namespace

std::optional<FileOwner> owner_of_new_files(const std::string& folder) {
  // An unnamed file, which leaves nothing behind if the process is killed. Not every file system supports it.
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  int error = 0;
  if (!fd) {
    auto path = (std::filesystem::path(folder) / ".owner-XXXXXX").string();
    fd = UniqueFd(::mkostemp(path.data(), O_CLOEXEC));
    error = errno;
    if (fd) ::unlink(path.c_str());
  }
  struct stat status {};
  if (fd && ::fstat(fd.get(), &status) == 0) return FileOwner{status.st_uid, status.st_gid};
  errno = fd ? errno : error;
  return std::nullopt;
}

int create_private_folder(const std::string& path) {
  int error = 0;
  std::filesystem::path folder;
  for (const auto& part : std::filesystem::path(path)) {
    struct stat above {};
    const bool for_group = !folder.empty() && ::stat(folder.c_str(), &above) == 0 && is_shared(above);
    folder /= part;
    if (::mkdir(folder.c_str(), S_IRWXU) != 0) {
      if (error == 0 && errno != EEXIST) error = errno;
      continue;
    }
    if (for_group) ::chmod(folder.c_str(), S_ISGID | S_IRWXU | S_IRWXG);
  }
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? 0 : error;
}

FolderTrust FolderTrust::of(const std::string& folder, std::string_view what, std::string_view remedy) {
  FolderTrust trust;
  trust.user_ = trust.owner_ = ::geteuid();
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return trust;
  trust.owner_ = status.st_uid;
  if (is_shared(status)) {
    trust.group_ = status.st_gid;
    trust.is_read_only_ = !may_write_to(folder) && is_denial(errno);
    return trust;
  }
  const auto own = may_write_to(folder) ? owner_of_new_files(folder) : std::nullopt;
  trust.is_read_only_ = !own && is_denial(errno);
  if (own) trust.user_ = own->user;
  if (!trust.is_read_only_ && trust.owner_ != trust.user_ && trust.owner_ != 0) {
    throw SourceError(fmt::format("{} {} belongs to another user (uid {}), who can replace its files: {}", what,
                                  printable(folder), status.st_uid, remedy));
  }
  if ((status.st_mode & written_by_others) != 0 && (status.st_mode & S_ISVTX) == 0) {
    throw SourceError(
        fmt::format("{} {} can be written to by other users (mode {:04o}), who can replace its files: run chmod "
                    "go-w on it, chmod g+s,o-w to share it with its group, or {}",
                    what, printable(folder), status.st_mode & 07777U, remedy));
  }
  return trust;
}

bool FolderTrust::covers(const struct stat& status) const {
  if (!S_ISREG(status.st_mode)) return false;
  if (group_) return status.st_gid == *group_ && (status.st_mode & S_IWOTH) == 0;
  return (status.st_uid == user_ || status.st_uid == owner_) && (status.st_mode & written_by_others) == 0;
}

bool FolderTrust::covers(int fd) const {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && covers(status);
}

bool FolderTrust::covers(const std::string& path) const {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && covers(status);
}

std::optional<std::string> read_trusted(const std::string& path, const FolderTrust& trust, std::size_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd || !trust.covers(fd.get())) return {};
  std::string content;
  std::string piece(std::min(max_bytes + 1, std::size_t{64} << 10), '\0');
  while (content.size() <= max_bytes) {
    const auto got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return {};
    if (got == 0) return content;
    content.append(piece, 0, static_cast<std::size_t>(got));
  }
  return {};
}

}  // namespace levada
