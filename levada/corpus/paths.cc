#include "levada/corpus/paths.h"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/base/urls.h"
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

/// Returns a pattern that matches only the name.
std::string quoted(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    if (std::string_view("*?[\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

/// Returns whether a name in a folder is hidden, or marks unfinished output (_temporary) or a program's notes
/// (_SUCCESS).
bool is_passed_over(const std::string& name) {
  return name.starts_with('.') || name.starts_with('_');
}

std::vector<std::string> matches_of(const std::string& pattern);

/// Returns the matches of a pattern with any number of folders, including none, between `above` and `rest`.
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
      if (is_passed_over(at->path().filename().string())) at.disable_recursion_pending();
      else add(at->path());
    }
  }
  return {matches.begin(), matches.end()};
} catch (const fs::filesystem_error& error) {
  throw SourceError(fmt::format("cannot look below {}: {}", printable(above), error.code().message()));
}

/// Returns the sorted matches; empty if nothing matches.
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
  const auto name = without_query(path);
  if (name.ends_with(".json")) return leading_json_lines(path) == 2;
  return is_text(path, formats) || name.ends_with(".bin");
}

bool is_plain_text(const std::string& path) {
  return path.ends_with(".txt") || path.ends_with(".txt.gz") || path.ends_with(".txt.zst");
}

/// Throws SourceError unless a folder's files are clearly all data.
void expect_one_kind(const std::string& folder, const std::vector<std::string>& files) {
  const auto plain = std::ranges::find_if(files, is_plain_text);
  const auto other = std::ranges::find_if_not(files, is_plain_text);
  if (plain == files.end() || other == files.end()) return;
  throw SourceError(fmt::format(
      "{0} holds both text and other data, such as {1} and {2}: select the files to read by patterns, such as "
      "'{0}{3}**/*{4}'",
      printable(folder), printable(*plain), printable(*other), folder.ends_with('/') ? "" : "/",
      fs::path(*other).extension().string()));
}

/// Returns an identity of the file that is independent of its path; nothing if it does not exist.
std::optional<std::pair<dev_t, ino_t>> number_of(const std::string& path) {
  struct stat status {};
  const bool is_there = ::stat(path.c_str(), &status) == 0 || ::stat((path + ".bin").c_str(), &status) == 0;
  return is_there ? std::optional(std::pair(status.st_dev, status.st_ino)) : std::nullopt;
}

void expect_each_once(const std::vector<std::string>& files) {
  constexpr std::string_view remedy =
      "; name it once, or name it in several weighted sources of a mix to read it more often";
  std::map<std::pair<dev_t, ino_t>, const std::string*> by_number;
  std::set<std::string_view> names;
  for (const auto& file : files) {
    if (!names.insert(file).second) throw SourceError(fmt::format("{} appears twice{}", printable(file), remedy));
    const auto number = is_url(file) ? std::nullopt : number_of(file);
    if (!number) continue;
    const auto [known, is_new] = by_number.emplace(*number, &file);
    if (is_new) continue;
    throw SourceError(fmt::format("{} and {} are one file{}", printable(*known->second), printable(file), remedy));
  }
}

/// Drops each .idx, and each prefix of a .bin and .idx, if the .bin is among the files, since it names the same tokens.
void drop_names_of_same_tokens(std::vector<std::string>& files, std::span<const TextFormat> formats) {
  const std::set<std::string> all(files.begin(), files.end());
  std::erase_if(files, [&](const std::string& path) {
    const auto prefix = path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
    return !is_data(path, formats) && all.contains(prefix + ".bin");
  });
}

/// Finds all data files below a folder, each once: a folder that symbolic links make reachable on several paths is read
/// on one of them, preferably the one without links.
class FolderWalk {
 public:
  FolderWalk(const std::string& folder, std::span<const TextFormat> formats, const std::string& token_cache)
      : formats_(formats) {
    struct stat status {};
    if (::stat(token_cache.c_str(), &status) == 0) token_cache_.emplace(status.st_dev, status.st_ino);
    std::vector<fs::path> links = {folder};
    while (!links.empty()) {
      // Follows links in name order, so that the result is the same on every machine.
      const auto first = std::ranges::min_element(links);
      std::vector<fs::path> folders = {*first};
      links.erase(first);
      while (!folders.empty()) {
        const auto next = std::move(folders.back());
        folders.pop_back();
        list(next, folders, links);
      }
    }
    std::ranges::sort(found_.files);
    expect_one_kind(folder, found_.files);
  }

  FoundFiles take() { return std::move(found_); }

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
      if (is_passed_over(name) || (is_cache && !entry_of_file(name).empty())) continue;
      std::error_code error;  // a dangling link is not a folder; opening it reports the error
      if (entry.is_directory(error)) {
        (entry.is_symlink(error) ? links : folders).push_back(path);
      } else if (is_data(path.string(), formats_)) {
        found_.files.push_back(path.string());
      } else if (path.extension() != ".idx") {
        ++found_.left_out[path.extension().string()];
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw SourceError(fmt::format("cannot list {}: {}", printable(folder.string()), error.code().message()));
  }

  std::span<const TextFormat> formats_;
  std::optional<std::pair<dev_t, ino_t>> token_cache_;
  std::set<std::pair<dev_t, ino_t>> visited_;
  FoundFiles found_;
};

[[noreturn]] void fail_no_data(const std::string& folder, std::span<const TextFormat> formats) {
  throw SourceError(fmt::format("{} holds no data files: {} or .bin", printable(folder), text_kinds(formats)));
}

void append(FoundFiles& to, FoundFiles more) {
  to.files.insert(to.files.end(), std::make_move_iterator(more.files.begin()),
                  std::make_move_iterator(more.files.end()));
  for (const auto& [end, count] : more.left_out) to.left_out[end] += count;
}

/// Returns the files that a name without a pattern refers to.
FoundFiles files_at(const std::string& path, std::span<const TextFormat> formats, const std::string& token_cache) {
  if (!is_directory(path)) return {{path}};
  auto found = FolderWalk(path, formats, token_cache).take();
  if (found.files.empty()) fail_no_data(path, formats);
  return found;
}

/// Expands URLs to files.
class UrlExpander {
 public:
  UrlExpander(std::span<const TextFormat> formats,
              const std::function<std::vector<std::string>(const std::string&)>& list)
      : formats_(formats), list_(list) {}

  FoundFiles expand(const std::string& url) const {
    if (without_query(url).find_first_of("*?[") == url.npos) return files_at(url);
    auto matches = list_(url);
    if (matches.empty()) throw SourceError(fmt::format("no file matches {}", printable(url)));
    std::ranges::sort(matches);
    FoundFiles found;
    for (const auto& match : matches) append(found, match.ends_with('/') ? files_below(match) : FoundFiles{{match}});
    return found;
  }

 private:
  FoundFiles files_at(const std::string& url) const {
    if (is_data(url, formats_) || without_query(url).ends_with(".idx")) return {{url}};
    auto found = files_below(url);
    return found.files.empty() ? FoundFiles{{url}} : found;
  }

  /// Returns no files if it is not a folder.
  FoundFiles files_below(const std::string& folder) const {
    const auto all = list_(folder);
    FoundFiles found;
    for (const auto& url : all) {
      const fs::path below = url.substr(std::min(folder.size(), url.size()));
      if (std::ranges::any_of(below, [](const fs::path& name) { return is_passed_over(name.string()); })) continue;
      if (is_data(url, formats_)) found.files.push_back(url);
      else if (!url.ends_with(".idx")) ++found.left_out[below.extension().string()];
    }
    if (found.files.empty() && !all.empty()) fail_no_data(folder, formats_);
    std::ranges::sort(found.files);
    expect_one_kind(folder, found.files);
    return found;
  }

  std::span<const TextFormat> formats_;
  const std::function<std::vector<std::string>(const std::string&)>& list_;
};

}  // namespace

FoundFiles expand_paths(const std::vector<std::string>& paths, std::span<const TextFormat> formats,
                        const std::string& token_cache,
                        const std::function<std::vector<std::string>(const std::string&)>& list) {
  constexpr std::string_view local = "file://";
  const UrlExpander urls(formats, list);
  FoundFiles found;
  for (const auto& name : paths) {
    const auto path = name.starts_with(local) ? name.substr(local.size()) : name;
    if (is_url(path)) {
      append(found, urls.expand(path));
      continue;
    }
    if (path.find_first_of("*?[") == std::string::npos || exists(path)) {
      append(found, files_at(path, formats, token_cache));
      continue;
    }
    auto matches = matches_of(path);
    if (matches.empty()) throw SourceError(fmt::format("no file matches {}", printable(path)));
    for (const auto& match : matches) append(found, files_at(match, formats, token_cache));
  }
  drop_names_of_same_tokens(found.files, formats);
  expect_each_once(found.files);
  return found;
}

}  // namespace levada
