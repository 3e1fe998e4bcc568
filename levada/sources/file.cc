#include "levada/sources/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "levada/base/error.h"
#include "levada/base/unique_fd.h"

namespace levada {
namespace {

[[noreturn]] void fail(std::string_view what, const std::string& path, int error) {
  throw StorageFault(error, fmt::format("cannot {} {}: {}", what, path, std::generic_category().message(error)));
}

class DiskFile final : public File {
 public:
  DiskFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  const std::string& path() const override { return path_; }

  std::size_t read(std::uint64_t offset, std::span<char> into) const override {
    while (true) {
      const auto got = ::pread(fd_.get(), into.data(), into.size(), static_cast<off_t>(offset));
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) fail(fmt::format("read byte {} of", offset), path_, errno);
    }
  }

  FileIdentity identity() const override {
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0) fail("look at", path_, errno);
    return {.size = static_cast<std::uint64_t>(status.st_size),
            .modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
            .device = status.st_dev,
            .inode = status.st_ino,
            .linked = status.st_nlink > 0};
  }

 private:
  std::string path_;
  UniqueFd fd_;
};

}  // namespace

std::unique_ptr<File> open_file(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail("open", path, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("look at", path, errno);
  if (S_ISDIR(status.st_mode)) {
    throw SourceError(fmt::format("{} is a directory: name the .jsonl or .txt files in it", path));
  }
  if (!S_ISREG(status.st_mode)) throw SourceError(fmt::format("{} is not a regular file", path));
  return std::make_unique<DiskFile>(path, std::move(fd));
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

void expect_unchanged(const File& file, const FileIdentity& before) {
  const auto now = file.identity();
  if (now == before) return;
  const auto happened = now.size < before.size   ? fmt::format("shrank from {} to {} bytes", before.size, now.size)
                        : now.size > before.size ? fmt::format("grew from {} to {} bytes", before.size, now.size)
                        : now.linked             ? std::string("was written to")
                                                 : std::string("was removed or replaced");
  throw SourceError(
      fmt::format("{} {} while it was being read: start again with a file that stays as it is", file.path(), happened));
}

}  // namespace levada
