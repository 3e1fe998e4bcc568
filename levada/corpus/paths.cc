#include "levada/corpus/paths.h"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/tokens/cache_entry.h"

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

/// A pattern that the name alone matches.
std::string quoted(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    if (std::string_view("*?[\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::vector<std::string> matches_of(const std::string& pattern);

/// Returns the matches of a pattern with any number of folders, also none, between `above` and `rest`.
std::vector<std::string> matches_below(const std::string& above, const std::string& rest) try {
  std::set<std::string> matches;
  const auto add = [&](const fs::path& folder) {
    for (auto& match : matches_of(quoted(folder.string()) + rest)) matches.insert(std::move(match));
  };
  for (const auto& top : matches_of(above)) {
    if (!is_directory(top)) continue;
    add(top);
    for (auto at = fs::recursive_directory_iterator(top); at != fs::recursive_directory_iterator(); ++at) {
      if (at->symlink_status().type() != fs::file_type::directory) continue;
      if (at->path().filename().string().starts_with('.')) at.disable_recursion_pending();
      else add(at->path());
    }
  }
  return {matches.begin(), matches.end()};
} catch (const fs::filesystem_error& error) {
  throw SourceError(fmt::format("cannot look below {}: {}", printable(above), error.code().message()));
}

/// Sorted; empty where nothing matches.
std::vector<std::string> matches_of(const std::string& pattern) {
  constexpr std::string_view any_folders = "/**/";
  if (pattern.starts_with(any_folders.substr(1))) return matches_of("./" + pattern);
  if (const auto at = pattern.find(any_folders); at != pattern.npos) {
    return matches_below(pattern.substr(0, std::max<std::size_t>(at, 1)), pattern.substr(at + any_folders.size() - 1));
  }
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
  std::vector<std::string> matches(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status != 0 && status != GLOB_NOMATCH) {
    throw SourceError(fmt::format("cannot look for {}: a folder on the way cannot be read", printable(pattern)));
  }
  std::ranges::sort(matches);
  return matches;
}

bool is_data(const std::string& path, std::span<const TextFormat> formats) {
  return is_text(path, formats) || path.ends_with(".bin");
}

/// Leaves out each .idx, and each prefix of a .bin and .idx, whose .bin is among the files: that names the same tokens.
void drop_names_of_same_tokens(std::vector<std::string>& files, std::span<const TextFormat> formats) {
  const std::set<std::string> all(files.begin(), files.end());
  std::erase_if(files, [&](const std::string& path) {
    const auto prefix = path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
    return !is_data(path, formats) && all.contains(prefix + ".bin");
  });
}

/// All data files below a folder, each once: a folder that can be reached by several ways, by symbolic links, is read
/// by one of them, by that without links if there is one.
class FolderWalk {
 public:
  FolderWalk(const std::string& folder, std::span<const TextFormat> formats, const std::string& token_cache)
      : formats_(formats) {
    struct stat status {};
    if (::stat(token_cache.c_str(), &status) == 0) token_cache_.emplace(status.st_dev, status.st_ino);
    std::vector<fs::path> links = {folder};
    while (!links.empty()) {
      // In the order of their names, for the same result on every machine.
      const auto first = std::ranges::min_element(links);
      std::vector<fs::path> folders = {*first};
      links.erase(first);
      while (!folders.empty()) {
        const auto next = std::move(folders.back());
        folders.pop_back();
        list(next, folders, links);
      }
    }
    std::ranges::sort(files_);
  }

  std::vector<std::string> take_files() { return std::move(files_); }

 private:
  void list(const fs::path& folder, std::vector<fs::path>& folders, std::vector<fs::path>& links) try {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) throw fs::filesystem_error("", {errno, std::generic_category()});
    const auto [number, is_new] = visited_.emplace(status.st_dev, status.st_ino);
    if (!is_new) return;
    const bool is_cache = token_cache_ == *number;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const auto& path = entry.path();
      const auto name = path.filename().string();
      if (name.starts_with('.') || (is_cache && !entry_of_file(name).empty())) continue;
      std::error_code error;  // A dangling link is not a folder; opening it reports the error.
      if (entry.is_directory(error)) {
        (entry.is_symlink(error) ? links : folders).push_back(path);
      } else if (is_data(path.string(), formats_)) {
        files_.push_back(path.string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw SourceError(fmt::format("cannot list {}: {}", printable(folder.string()), error.code().message()));
  }

  std::span<const TextFormat> formats_;
  std::optional<std::pair<dev_t, ino_t>> token_cache_;
  std::set<std::pair<dev_t, ino_t>> visited_;
  std::vector<std::string> files_;
};

[[noreturn]] void fail_no_data(const std::string& folder, std::span<const TextFormat> formats) {
  throw SourceError(fmt::format("{} holds no file of data: {} or .bin", printable(folder), text_kinds(formats)));
}

std::vector<std::string> files_below(const std::string& folder, std::span<const TextFormat> formats,
                                     const std::string& token_cache) {
  auto files = FolderWalk(folder, formats, token_cache).take_files();
  if (files.empty()) fail_no_data(folder, formats);
  return files;
}

void append(std::vector<std::string>& to, std::vector<std::string> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// Returns the files that a name without a pattern refers to.
std::vector<std::string> files_at(const std::string& path, std::span<const TextFormat> formats,
                                  const std::string& token_cache) {
  return is_directory(path) ? files_below(path, formats, token_cache) : std::vector{path};
}

/// Expands URLs to files.
class UrlExpander {
 public:
  UrlExpander(std::span<const TextFormat> formats,
              const std::function<std::vector<std::string>(const std::string&)>& list)
      : formats_(formats), list_(list) {}

  std::vector<std::string> expand(const std::string& url) const {
    // A question mark begins the parameters of a web page.
    if (url.find_first_of(url.starts_with("http") ? "*[" : "*?[") == url.npos) return files_at(url);
    auto matches = list_(url);
    if (matches.empty()) throw SourceError(fmt::format("no file matches {}", printable(url)));
    std::ranges::sort(matches);
    std::vector<std::string> files;
    for (const auto& match : matches) append(files, match.ends_with('/') ? files_below(match) : std::vector{match});
    return files;
  }

 private:
  std::vector<std::string> files_at(const std::string& url) const {
    if (is_data(url, formats_) || url.ends_with(".idx")) return {url};
    auto files = files_below(url);
    return files.empty() ? std::vector{url} : files;
  }

  /// Empty if it is no folder.
  std::vector<std::string> files_below(const std::string& folder) const {
    const auto all = list_(folder);
    std::vector<std::string> files;
    const auto is_wanted = [&](const std::string& url) {
      const bool is_hidden = url.find("/.", std::min(folder.size() - 1, url.size())) != url.npos;
      return !is_hidden && is_data(url, formats_);
    };
    std::ranges::copy_if(all, std::back_inserter(files), is_wanted);
    if (files.empty() && !all.empty()) fail_no_data(folder, formats_);
    std::ranges::sort(files);
    return files;
  }

  std::span<const TextFormat> formats_;
  const std::function<std::vector<std::string>(const std::string&)>& list_;
};

}  // namespace

std::vector<std::string> expand_paths(const std::vector<std::string>& paths, std::span<const TextFormat> formats,
                                      const std::string& token_cache,
                                      const std::function<std::vector<std::string>(const std::string&)>& list) {
  constexpr std::string_view local = "file://";
  const UrlExpander urls(formats, list);
  std::vector<std::string> files;
  for (const auto& name : paths) {
    const auto path = name.starts_with(local) ? name.substr(local.size()) : name;
    if (is_url(path)) {
      append(files, urls.expand(path));
      continue;
    }
    if (path.find_first_of("*?[") == std::string::npos || exists(path)) {
      append(files, files_at(path, formats, token_cache));
      continue;
    }
    auto matches = matches_of(path);
    if (matches.empty()) throw SourceError(fmt::format("no file matches {}", printable(path)));
    for (const auto& match : matches) append(files, files_at(match, formats, token_cache));
  }
  drop_names_of_same_tokens(files, formats);
  return files;
}

}  // namespace levada
