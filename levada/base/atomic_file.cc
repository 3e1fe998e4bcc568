#include "levada/base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "levada/base/error.h"

namespace levada {
namespace {

// Large enough for any disk, little against memory: two of these are under way at most.
constexpr std::uint64_t stretch_bytes = std::uint64_t{8} << 20;

std::filesystem::path folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

std::string partial_name(const std::string& path) {
  return (folder_of(path) / fmt::format(".{}.partial", std::filesystem::path(path).filename().string())).string();
}

bool is_same_file(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

}  // namespace

AtomicFile::AtomicFile(std::string path, Write write)
    : path_(std::move(path)), partial_(partial_name(path_)), write_(write ? std::move(write) : ::write) {
  open();
}

AtomicFile::~AtomicFile() {
  if (fd_) ::unlink(partial_.c_str());
}

void AtomicFile::fail(std::string_view what, int error) const {
  throw SourceError(fmt::format(
      "cannot {} {}: {}", what, path_,
      error == ENOSPC ? "the disk is full, and nothing of it is left there" : std::generic_category().message(error)));
}

void AtomicFile::open() {
  constexpr mode_t readable = 0666;
  while (true) {
    UniqueFd fd(::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, readable));
    if (!fd) fail("create", errno);
    // Held as long as the file is open. Where a file system has no locks, two writers at once are not found out.
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw SourceError(fmt::format("another process is writing {}: wait for its end, or choose another name", path_));
    }
    // It may have got its name, or been removed, between the two calls.
    if (!is_same_file(fd.get(), partial_)) continue;
    if (::ftruncate(fd.get(), 0) != 0) fail("create", errno);
    fd_ = std::move(fd);
    return;
  }
}

void AtomicFile::write(ByteView bytes) {
  while (!bytes.empty()) {
    const auto done = write_(fd_.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    written_ += static_cast<std::uint64_t>(done);
  }
  while (written_ - started_ >= stretch_bytes) start_stretch();
}

// So that sync() finds the work done, and pages are used again: touching new ones costs more than a fast disk does. It
// is no more than advice, so errors do not count; sync() finds those of the disk.
void AtomicFile::start_stretch() {
  const auto stretch = static_cast<off_t>(stretch_bytes);
  const auto start = static_cast<off_t>(started_);
  ::sync_file_range(fd_.get(), start, stretch, SYNC_FILE_RANGE_WRITE);
  started_ += stretch_bytes;
  const auto before = start - 2 * stretch;
  if (before < 0) return;
  ::sync_file_range(fd_.get(), before, stretch,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  ::posix_fadvise(fd_.get(), before, stretch, POSIX_FADV_DONTNEED);
}

void AtomicFile::sync() {
  if (::fsync(fd_.get()) != 0) fail("write", errno);
}

void AtomicFile::publish() {
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail("name", errno);
  fd_ = {};
  sync_folder_of(path_);
}

void sync_folder_of(const std::string& path) {
  const auto folder = folder_of(path);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot do that for folders, and need it not.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    throw SourceError(fmt::format("cannot write {}: {}", folder.string(), std::generic_category().message(errno)));
  }
}

}  // namespace levada
