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
#include "levada/sources/known_files.h"
#include "levada/tokens/byte_stream.h"
#include "levada/tokens/cache_entry.h"

namespace levada {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view pattern_characters = "*?[";

bool is_pattern(std::string_view path) {
  return path.find_first_of(pattern_characters) != path.npos;
}

/// Identifies a file or folder regardless of its path.
using FileNumber = std::pair<dev_t, ino_t>;

bool is_directory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

/// Returns whether a file has that name, or the .bin of that prefix.
bool names_file(const std::string& path) {
  return exists(path) || exists(path + ".bin");
}

/// Returns a pattern that matches only the name, for glob(7) and for the storage of URLs.
std::string quoted(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    if (c == '\\') pattern += "\\\\";
    else if (pattern_characters.find(c) != pattern_characters.npos) pattern += fmt::format("[{}]", c);
    else pattern += c;
  }
  return pattern;
}

/// Returns whether a name in a folder is hidden, or marks unfinished output (_temporary) or a program's notes
/// (_SUCCESS).
bool is_passed_over(const std::string& name) {
  return name.starts_with('.') || name.starts_with('_');
}

/// Visits folders, and the folders below them, each once: a folder that symbolic links make reachable on several paths
/// is visited on one of them, preferably the one without links.
class FolderTree {
 public:
  using Entries = std::vector<fs::directory_entry>;  ///< without the names that are passed over
  using Visit = std::function<void(const fs::path& folder, const FileNumber& number, const Entries& entries)>;

  /// Throws SourceError if a folder cannot be listed.
  void visit(const std::vector<fs::path>& tops, const Visit& visit) {
    std::vector<fs::path> links;
    for (const auto& top : tops) visit_below(top, links, visit);
    while (!links.empty()) {
      // Follows links in name order, so that the result is the same on every machine.
      const auto first = std::ranges::min_element(links);
      const auto link = *first;
      links.erase(first);
      visit_below(link, links, visit);
    }
  }

 private:
  /// Visits all that is reachable without links. Appends the links found to `links`.
  void visit_below(const fs::path& top, std::vector<fs::path>& links, const Visit& visit) {
    std::vector<fs::path> folders = {top};
    while (!folders.empty()) {
      const auto next = std::move(folders.back());
      folders.pop_back();
      list(next, folders, links, visit);
    }
  }

  void list(const fs::path& folder, std::vector<fs::path>& folders, std::vector<fs::path>& links,
            const Visit& visit) try {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) throw fs::filesystem_error("", {errno, std::generic_category()});
    const auto [number, is_new] = visited_.emplace(status.st_dev, status.st_ino);
    if (!is_new) return;
    Entries entries;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (is_passed_over(entry.path().filename().string())) continue;
      std::error_code error;  // a dangling link is not a folder; opening it reports the error
      if (entry.is_directory(error)) (entry.is_symlink(error) ? links : folders).push_back(entry.path());
      else entries.push_back(entry);
    }
    visit(folder, *number, entries);
  } catch (const fs::filesystem_error& error) {
    throw SourceError(fmt::format("cannot list {}: {}", printable(folder.string()), error.code().message()));
  }

  std::set<FileNumber> visited_;
};

/// Drops the folders among the matches whose names are passed over in folders, unless the pattern names them.
void drop_passed_over(std::vector<std::string>& matches, const std::string& pattern,
                      const std::function<bool(const std::string&)>& is_folder) {
  const auto name_of = [](std::string_view path) {
    if (path.ends_with('/')) path.remove_suffix(1);
    return std::string(path.substr(path.rfind('/') + 1));
  };
  if (is_passed_over(name_of(pattern))) return;
  std::erase_if(matches, [&](const std::string& match) { return is_passed_over(name_of(match)) && is_folder(match); });
}

std::vector<std::string> matches_of(const std::string& pattern);

/// Returns the matches of a pattern with any number of folders, including none, between `above` and `rest`.
std::vector<std::string> matches_below(const std::string& above, const std::string& rest) {
  std::set<std::string> matches;
  std::vector<fs::path> tops;
  for (const auto& top : matches_of(above)) {
    if (is_directory(top)) tops.emplace_back(top);
  }
  FolderTree().visit(tops, [&](const fs::path& folder, const FileNumber&, const FolderTree::Entries&) {
    for (auto& match : matches_of(quoted(folder.string()) + rest)) matches.insert(std::move(match));
  });
  return {matches.begin(), matches.end()};
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

/// Returns the path of a data file without the extensions that tell its format and compression.
std::string stem_of(const std::string& path, std::span<const TextFormat> formats) {
  std::string stem;
  compression_of(path, &stem);
  std::vector<std::string> extensions = {".bin", ".jsonl", ".ndjson", ".json", ".txt"};
  for (const auto& format : formats) extensions.push_back(format.extension);
  for (const auto& extension : extensions) {
    if (stem.ends_with(extension)) return stem.substr(0, stem.size() - extension.size());
  }
  return stem;
}

/// Throws SourceError if a folder has a file in two forms, such as a.jsonl and a.jsonl.gz, or the a.bin made of it.
void expect_one_form(const std::string& folder, const std::vector<std::string>& files,
                     std::span<const TextFormat> formats) {
  std::map<std::string, const std::string*> by_stem;
  for (const auto& file : files) {
    const auto stem = stem_of(file, formats);
    const auto [other, is_new] = by_stem.emplace(stem, &file);
    if (is_new) continue;
    throw SourceError(fmt::format(
        "{0} and {1} have one name, so they seem to hold the same documents twice: remove one of them, or select the "
        "files to read by patterns, such as '{2}{3}**/*{4}'",
        printable(*other->second), printable(file), printable(folder), folder.ends_with('/') ? "" : "/",
        printable(other->second->substr(stem.size()))));
  }
}

/// Returns an identity of the file that is independent of its path; nothing if it does not exist.
std::optional<FileNumber> number_of(const std::string& path) {
  struct stat status {};
  const bool is_there = ::stat(path.c_str(), &status) == 0 || ::stat((path + ".bin").c_str(), &status) == 0;
  return is_there ? std::optional(FileNumber(status.st_dev, status.st_ino)) : std::nullopt;
}

void expect_each_once(const std::vector<std::string>& files) {
  constexpr std::string_view remedy =
      "; name it once, or name it in several weighted sources of a mix to read it more often";
  std::map<FileNumber, const std::string*> by_number;
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

/// Finds all data files below a folder, each once.
FoundFiles files_below(const std::string& folder, std::span<const TextFormat> formats, const std::string& token_cache) {
  struct stat status {};
  const bool has_cache = ::stat(token_cache.c_str(), &status) == 0;
  const FileNumber cache(status.st_dev, status.st_ino);
  FoundFiles found;
  FolderTree().visit({folder}, [&](const fs::path&, const FileNumber& number, const FolderTree::Entries& entries) {
    for (const auto& entry : entries) {
      const auto& path = entry.path();
      const bool is_entry = has_cache && cache == number && !entry_of_file(path.filename().string()).empty();
      if (is_entry || is_file_of_entry(path.string())) continue;
      if (is_data(path.string(), formats)) found.files.push_back(path.string());
      else if (path.extension() != ".idx" && path.extension() != KnownFiles::extension)
        ++found.left_out[path.extension().string()];
    }
  });
  std::ranges::sort(found.files);
  expect_one_kind(folder, found.files);
  expect_one_form(folder, found.files, formats);
  return found;
}

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
  auto found = files_below(path, formats, token_cache);
  if (found.files.empty()) fail_no_data(path, formats);
  return found;
}

/// Throws SourceError if a path names both a folder and a .bin with .idx.
void expect_one_meaning(const std::string& path) {
  if (path.ends_with('/') || !exists(path + ".bin") || !exists(path + ".idx") || !is_directory(path)) return;
  throw SourceError(fmt::format("{0} is a folder, and also the prefix of {0}.bin and {0}.idx: name {0}/ or {0}.bin",
                                printable(path)));
}

/// Expands URLs to files.
class UrlExpander {
 public:
  UrlExpander(std::span<const TextFormat> formats,
              const std::function<std::vector<std::string>(const std::string&)>& list)
      : formats_(formats), list_(list) {}

  FoundFiles expand(const std::string& url) const {
    if (!is_pattern(without_query(url))) return files_at(url);
    auto matches = list_(url);
    drop_passed_over(matches, url, [](const std::string& match) { return match.ends_with('/'); });
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
    expect_one_form(folder, found.files, formats_);
    return found;
  }

  std::span<const TextFormat> formats_;
  const std::function<std::vector<std::string>(const std::string&)>& list_;
};

}  // namespace

std::string path_in_folder(const std::string& folder, const std::string& path) {
  const auto joined = (fs::path(folder) / path).string();
  const bool is_certain = is_pattern(path) ? fs::path(path).is_absolute() : is_url(folder) || !is_pattern(joined);
  if (is_certain || (!is_url(folder) && names_file(joined))) return joined;
  return (fs::path(quoted(folder)) / path).string();
}

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
    if (!is_pattern(path) || names_file(path)) {
      expect_one_meaning(path);
      append(found, files_at(path, formats, token_cache));
      continue;
    }
    auto matches = matches_of(path);
    drop_passed_over(matches, path, is_directory);
    if (matches.empty()) throw SourceError(fmt::format("no file matches {}", printable(path)));
    for (const auto& match : matches) append(found, files_at(match, formats, token_cache));
  }
  drop_names_of_same_tokens(found.files, formats);
  expect_each_once(found.files);
  return found;
}

}  // namespace levada
