#include "levada/tokens/cache_entry.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>

#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/base/private_files.h"
#include "levada/base/urls.h"
#include "levada/sources/file.h"
#include "levada/tokens/cache_key.h"

namespace levada {
namespace {

constexpr std::size_t max_meta_bytes = std::size_t{1} << 20;
constexpr std::size_t max_source_chars = 48, key_chars = 16;

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
}

bool is_entry_name(std::string_view name) {
  if (name.size() <= key_chars || name.size() > max_source_chars + 1 + key_chars) return false;
  const auto key = name.substr(name.size() - key_chars);
  return name[name.size() - key_chars - 1] == '-' && !name.starts_with('.') && std::ranges::all_of(name, is_plain) &&
         key.find_first_not_of("0123456789abcdef") == key.npos;
}

}  // namespace

std::string entry_name(const std::string& key) {
  return fmt::format("text-{}", key.substr(0, key_chars));
}

std::string_view entry_of_file(std::string_view file) {
  for (const auto extension : {std::string_view(".bin"), std::string_view(".idx"), meta_extension, mark_extension}) {
    if (!file.ends_with(extension)) continue;
    const auto name = file.substr(0, file.size() - extension.size());
    return is_entry_name(name) ? name : std::string_view();
  }
  return {};
}

std::string CacheEntryMeta::text() const {
  return json_text(nlohmann::ordered_json{{"version", version},
                                          {"source", source},
                                          {"tokenizer", tokenizer},
                                          {"documents", documents},
                                          {"tokens", tokens},
                                          {"bad_lines", bad_lines.count},
                                          {"first_bad_lines", bad_lines.first},
                                          {"bytes", bytes},
                                          {"digest", digest},
                                          {"checksum", checksum},
                                          {"key", key},
                                          {"content", content},
                                          {"modified", modified}}) +
         "\n";
}

std::optional<CacheEntryMeta> CacheEntryMeta::read(const std::string& path, const FolderTrust& trust) try {
  const auto file = open_trusted_file(path, trust);
  const auto size = file->identity().size;
  if (size > max_meta_bytes) return std::nullopt;
  std::string content(size, '\0');
  content.resize(read_fully(*file, 0, content));
  const auto json = parse_json(content, 2, "");
  if (json.at("version") != version) return std::nullopt;
  return CacheEntryMeta{
      .key = json.at("key"),
      .content = json.at("content"),
      .modified = json.at("modified"),
      .source = shown_url(json.at("source").get_ref<const std::string&>()),
      .tokenizer = json.at("tokenizer"),
      .digest = json.at("digest"),
      .checksum = json.at("checksum"),
      .tokens = json.at("tokens"),
      .documents = json.at("documents"),
      .bad_lines = {.count = json.at("bad_lines"), .first = json.value("first_bad_lines", std::vector<std::int64_t>())},
      .bytes = json.at("bytes")};
} catch (const StorageFault& fault) {
  // A file that was missing may be there by now. A stale handle of a network file system means that another host has
  // replaced it.
  if (fault.error() != ENOENT && fault.error() != ESTALE && trust.covers(path)) throw;
  return std::nullopt;
} catch (const Error&) {
  return std::nullopt;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

bool CacheEntryMeta::is_of(std::int64_t modified_ns) const {
  if (modified_ns == CacheKey::unknown_time) return false;
  return modified_ns == 0 || std::ranges::find(modified, modified_ns) != modified.end();
}

bool has_all_bytes(const std::string& prefix, std::uint64_t bytes, const FolderTrust& trust) {
  std::uint64_t found = 0;
  for (const char* extension : {".bin", ".idx"}) {
    struct stat status {};
    if (::lstat((prefix + extension).c_str(), &status) != 0 || !trust.covers(status)) return false;
    found += static_cast<std::uint64_t>(status.st_size);
  }
  return found == bytes;
}

bool is_file_of_entry(const std::string& path) try {
  const std::filesystem::path file(path);
  const auto name = file.filename().string();
  const std::string entry(entry_of_file(name));
  if (entry.empty()) return false;
  const auto meta = open_file(meta_path((file.parent_path() / entry).string()));
  std::string content(std::min<std::uint64_t>(meta->identity().size, max_meta_bytes), '\0');
  content.resize(read_fully(*meta, 0, content));
  const auto json = parse_json(content, 2, "");
  const auto key = json.at("key").get<std::string>();
  return json.contains("checksum") && entry.ends_with("-" + key.substr(0, key_chars));
} catch (const Error&) {
  return false;  // There is no such .json, or it cannot be read.
} catch (const nlohmann::json::exception&) {
  return false;
}

}  // namespace levada
