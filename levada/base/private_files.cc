#include "levada/base/private_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

constexpr mode_t written_by_others = S_IWGRP | S_IWOTH;

}  // namespace

bool is_own(const struct stat& status) {
  return S_ISREG(status.st_mode) && status.st_uid == ::geteuid();
}

bool is_own(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && is_own(status);
}

bool is_private(const struct stat& status) {
  return is_own(status) && (status.st_mode & written_by_others) == 0;
}

bool is_private(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && is_private(status);
}

void create_private_folder(const std::string& path) {
  std::filesystem::path folder;
  for (const auto& part : std::filesystem::path(path)) {
    folder /= part;
    ::mkdir(folder.c_str(), S_IRWXU);  // Fails for those that exist.
  }
}

void expect_private_folder(const std::string& path, std::string_view what, std::string_view remedy) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return;
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    throw SourceError(fmt::format("{} {} belongs to another user (uid {}), who can replace what is in it: {}", what,
                                  printable(path), status.st_uid, remedy));
  }
  if ((status.st_mode & written_by_others) == 0 || (status.st_mode & S_ISVTX) != 0) return;
  throw SourceError(
      fmt::format("{} {} can be written to by other users (mode {:04o}), who can replace what is in it: run chmod go-w "
                  "on it, or {}",
                  what, printable(path), status.st_mode & 07777U, remedy));
}

}  // namespace levada
