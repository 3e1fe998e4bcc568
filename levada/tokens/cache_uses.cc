#include "levada/tokens/cache_uses.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "levada/base/error.h"
#include "levada/base/private_files.h"
#include "levada/base/text.h"
#include "levada/base/unique_fd.h"
#include "levada/tokens/cache_entry.h"

namespace levada {
namespace {

namespace fs = std::filesystem;

bool is_list(const std::string& name) {
  return name.starts_with(uses_prefix) && name.size() == uses_prefix.size() + uses_pattern.size();
}

}  // namespace

bool remove_list_if_ended(const std::string& path, const FolderTrust& trust) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return fd && trust.covers(fd.get()) && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && ::unlink(path.c_str()) == 0;
}

std::set<std::string> entries_in_use(const std::string& dir, const FolderTrust& trust) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(dir, error)) {
    const auto path = file.path().string();
    if (!is_list(file.path().filename().string()) || remove_list_if_ended(path, trust)) continue;
    const auto list = read_trusted(path, trust);
    if (!list) {
      if (fs::symlink_status(path, error).type() == fs::file_type::not_found) continue;  // Its process has just ended.
      throw SourceError(
          fmt::format("{} lists entries of the token cache that are in use, but cannot be read, so no entry can be "
                      "removed: delete it once no process uses the cache",
                      printable(path)));
    }
    for (std::size_t at = 0; at < list->size();) {
      const auto end = std::min(list->find('\n', at), list->size());
      names.insert(list->substr(at, end - at));
      at = end + 1;
    }
  }
  return names;
}

std::string line_of(const std::string& prefix) {
  return fs::path(prefix).filename().string() + "\n";
}

}  // namespace levada
