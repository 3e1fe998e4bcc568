#include "levada/corpus/paths.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "levada/base/error.h"

namespace levada {
namespace {

namespace fs = std::filesystem;

bool is_directory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

/// Sorted; empty where nothing matches.
std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
  std::vector<std::string> matches(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status != 0 && status != GLOB_NOMATCH) {
    throw SourceError(fmt::format("cannot look for {}: a folder on the way cannot be read", pattern));
  }
  std::ranges::sort(matches);
  return matches;
}

/// Without each .idx whose .bin is there, too.
void drop_indexes(std::vector<std::string>& sorted) {
  const auto has_data = [&](const std::string& path) {
    return path.ends_with(".idx") && std::ranges::binary_search(sorted, path.substr(0, path.size() - 4) + ".bin");
  };
  std::vector<std::string> kept;
  std::ranges::remove_copy_if(sorted, std::back_inserter(kept), has_data);
  sorted = std::move(kept);
}

std::vector<std::string> files_below(const std::string& folder) try {
  std::vector<std::string> files;
  auto entries = fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink);
  for (const auto& entry : entries) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (entry.is_directory()) {
      if (hidden) entries.disable_recursion_pending();
      continue;
    }
    const auto extension = entry.path().extension();
    const bool known = extension == ".jsonl" || extension == ".txt" || extension == ".bin";
    if (known && !hidden) files.push_back(entry.path().string());
  }
  if (files.empty()) throw SourceError(fmt::format("{} holds no .jsonl, .txt or .bin file", folder));
  std::ranges::sort(files);
  return files;
} catch (const fs::filesystem_error& error) {
  throw SourceError(fmt::format("cannot list {}: {}", folder, error.code().message()));
}

void append(std::vector<std::string>& to, std::vector<std::string> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// What a name that is no pattern stands for.
std::vector<std::string> files_at(const std::string& path) {
  return is_directory(path) ? files_below(path) : std::vector{path};
}

}  // namespace

std::vector<std::string> expand_paths(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const auto& path : paths) {
    if (path.find_first_of("*?[") == std::string::npos || exists(path)) {
      append(files, files_at(path));
      continue;
    }
    auto matches = matches_of(path);
    if (matches.empty()) throw SourceError(fmt::format("no file matches {}", path));
    drop_indexes(matches);
    for (const auto& match : matches) append(files, files_at(match));
  }
  return files;
}

}  // namespace levada
