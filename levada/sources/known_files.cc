#include "levada/sources/known_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "levada/base/error.h"

namespace levada {

namespace fs = std::filesystem;

std::string KnownFiles::path_of(std::string_view kind, const Digest& key) const {
  return (fs::path(dir_) / fmt::format("{}-{}{}", kind, key.hex(), extension)).string();
}

std::optional<FolderTrust> KnownFiles::trust() const try {
  return FolderTrust::of(dir_, "the token cache", "");
} catch (const SourceError&) {
  return std::nullopt;
}

std::optional<FolderTrust> KnownFiles::trust_for_writing() const {
  if (!has_folder() || create_private_folder(dir_) != 0) return std::nullopt;
  auto trusted = trust();
  return trusted && !trusted->is_read_only() ? std::move(trusted) : std::nullopt;
}

void KnownFiles::note_use(const std::string& path) noexcept {
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

void KnownFiles::remove_unused(const std::string& dir, const FolderTrust& trust) noexcept try {
  const auto oldest = fs::file_time_type::clock::now() - std::chrono::days(30);
  for (const auto& file : fs::directory_iterator(dir)) {
    const auto path = file.path().string();
    if (file.path().extension() == extension && file.last_write_time() < oldest && trust.covers(path)) {
      ::unlink(path.c_str());
    }
  }
} catch (const std::exception&) {  // the next prune tries again
}

}  // namespace levada
