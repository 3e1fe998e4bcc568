#include "levada/sources/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "levada/base/error.h"
#include "levada/base/private_files.h"
#include "levada/base/text.h"
#include "levada/sources/descriptors.h"

namespace levada {
namespace {

[[noreturn]] void fail(std::string_view what, const std::string& path, int error) {
  const auto advice = error == EMFILE ? ": raise ulimit -n" : "";
  throw StorageFault(error,
                     fmt::format("cannot {} {}: {}{}", what, path, std::generic_category().message(error), advice));
}

[[noreturn]] void fail_changed(const std::string& path, std::string_view happened) {
  throw SourceError(
      fmt::format("{} {} while it was being read: start again with a file that does not change", path, happened));
}

constexpr std::string_view replaced = "was removed or replaced";

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

FileIdentity identity_of(const struct stat& status) {
  return {.size = static_cast<std::uint64_t>(status.st_size),
          .modified_ns = nanoseconds(status.st_mtim),
          .changed_ns = nanoseconds(status.st_ctim),
          .device = status.st_dev,
          .inode = status.st_ino,
          .linked = status.st_nlink > 0,
          .group = status.st_gid,
          .permissions = status.st_mode & 0777U};
}

/// Returns a path under which the open file can be opened again, regardless of later changes to the working folder and
/// symbolic links.
std::string lasting_path(const std::string& path, int fd) {
  std::error_code error;
  // Asks the kernel, because resolving the path again would take a call per folder.
  auto real = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error);
  if (error || !real.is_absolute()) real = std::filesystem::absolute(path, error);
  return error ? path : real.string();
}

class DiskFile final : public File {
 public:
  DiskFile(const std::string& path, const FileIdentity& opened, std::shared_ptr<const UniqueFd> fd,
           const std::optional<FolderTrust>& trust)
      : path_(printable(path)), lasting_path_(lasting_path(path, fd->get())), opened_(opened), trust_(trust) {
    descriptor_.keep(std::move(fd));
  }

  const std::string& path() const override { return path_; }

  std::size_t read(std::uint64_t offset, std::span<char> into) const override {
    const auto fd = open();
    while (true) {
      const auto got = ::pread(fd->get(), into.data(), into.size(), static_cast<off_t>(offset));
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) give_up(fmt::format("read byte {} of", offset), errno);
    }
  }

  FileIdentity identity() const override {
    struct stat status {};
    const auto fd = descriptor_.get();
    if ((fd ? ::fstat(fd->get(), &status) : ::stat(lasting_path_.c_str(), &status)) != 0) {
      if (fd != nullptr || (errno != ENOENT && errno != ENOTDIR)) give_up("look at", errno);
      status.st_ino = 0;
    }
    if (is_opened(status)) return identity_of(status);
    auto gone = opened_;
    gone.linked = false;
    return gone;
  }

 private:
  bool is_opened(const struct stat& status) const {
    return status.st_ino == opened_.inode && status.st_dev == opened_.device;
  }

  std::shared_ptr<const UniqueFd> open() const {
    if (auto fd = descriptor_.get()) return fd;
    auto fd = open_for_reading(lasting_path_, trust_ ? O_NOFOLLOW : 0);
    struct stat status {};
    if (!fd || ::fstat(fd->get(), &status) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) fail_changed(path_, replaced);
      fail("open", path_, errno);
    }
    if (!is_opened(status) || (trust_ && !trust_->covers(status))) fail_changed(path_, replaced);
    descriptor_.keep(fd);
    return fd;
  }

  /// A stale handle of a network file system stays stale, so the next try opens the file again.
  [[noreturn]] void give_up(std::string_view what, int error) const {
    if (error == ESTALE) descriptor_.close();
    fail(what, path_, error);
  }

  std::string path_, lasting_path_;
  FileIdentity opened_;
  std::optional<FolderTrust> trust_;
  mutable Descriptor descriptor_;
};

[[noreturn]] void fail_not_trusted(const std::string& shown) {
  throw SourceError(fmt::format(
      "{} is a link, another user's file, or one that others may write to, and is not used: remove it", shown));
}

std::unique_ptr<File> open_disk_file(const std::string& path, const std::optional<FolderTrust>& trust) {
  auto fd = open_for_reading(path, trust ? O_NOFOLLOW : 0);
  const auto shown = printable(path);
  if (!fd && errno == ELOOP && trust) fail_not_trusted(shown);
  if (!fd) fail("open", shown, errno);
  struct stat status {};
  if (::fstat(fd->get(), &status) != 0) fail("look at", shown, errno);
  if (S_ISDIR(status.st_mode)) {
    throw SourceError(fmt::format("{} is a directory: name the .jsonl or .txt files in it", shown));
  }
  if (!S_ISREG(status.st_mode)) throw SourceError(fmt::format("{} is not a regular file", shown));
  if (trust && !trust->covers(status)) fail_not_trusted(shown);
  return std::make_unique<DiskFile>(path, identity_of(status), std::move(fd), trust);
}

}  // namespace

bool is_url(std::string_view path) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz", others = "abcdefghijklmnopqrstuvwxyz0123456789+.-";
  const auto end = path.find_first_not_of(others);
  return end != path.npos && letters.find(path.front()) != letters.npos && path.substr(end).starts_with("://");
}

std::unique_ptr<File> open_file(const std::string& path) {
  return open_disk_file(path, std::nullopt);
}
std::unique_ptr<File> open_trusted_file(const std::string& path, const FolderTrust& trust) {
  return open_disk_file(path, trust);
}

std::size_t read_fully(const File& file, std::uint64_t offset, std::span<char> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    const auto got = file.read(offset + done, into.subspan(done));
    if (got == 0) break;
    done += got;
  }
  return done;
}

FileIdentity expect_unchanged(const File& file, const FileIdentity& before) {
  auto now = file.identity();
  if (now.size < before.size) {
    fail_changed(file.path(), fmt::format("shrank from {} to {} bytes", before.size, now.size));
  }
  if (now.size > before.size) {
    fail_changed(file.path(), fmt::format("grew from {} to {} bytes", before.size, now.size));
  }
  if (!now.linked) fail_changed(file.path(), replaced);
  if (now.modified_ns != before.modified_ns || now.tag != before.tag) fail_written(file);
  return now;
}

void fail_written(const File& file) {
  fail_changed(file.path(), "was written to");
}

}  // namespace levada
