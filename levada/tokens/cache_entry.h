// The files of an entry in a token cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/private_files.h"
#include "levada/tokens/bad_lines.h"

namespace levada {

/// A mark records that all of an entry was verified: see CacheFolder::verify().
inline constexpr std::string_view meta_extension = ".json", mark_extension = ".verified";
inline std::string meta_path(const std::string& prefix) {
  return prefix + std::string(meta_extension);
}
inline std::string mark_path(const std::string& prefix) {
  return prefix + std::string(mark_extension);
}

/// Returns the name of the files of an entry.
std::string entry_name(const std::string& key);
/// Returns the name of the entry that a file is of, by the file's name alone; empty for a name that no entry makes.
std::string_view entry_of_file(std::string_view file);

/// The content of an entry's .json.
struct CacheEntryMeta {
  static constexpr int version = 2;

  std::string key;                     ///< CacheKey::text
  std::string content;                 ///< digest of all bytes of the text
  std::vector<std::int64_t> modified;  ///< when texts with this content were written, in ns since 1970
  std::string source, tokenizer, digest;
  std::string checksum;  ///< of all bytes of the .bin, then the .idx
  std::int64_t tokens = 0, documents = 0;
  BadLines bad_lines;
  std::uint64_t bytes = 0;

  std::string text() const;
  /// Empty for a file that is damaged, of another version, or not covered by `trust`.
  static std::optional<CacheEntryMeta> read(const std::string& path, const FolderTrust& trust);
  /// Whether a text that was written at this time is known to have this content. 0: it has, by its key.
  bool is_of(std::int64_t modified_ns) const;
};

/// Returns the content of a file; empty for one that `trust` does not cover.
std::optional<std::string> read_trusted(const std::string& path, const FolderTrust& trust);
/// Whether `trust` covers the .bin and the .idx, and together they have the length that they were written with.
bool has_all_bytes(const std::string& prefix, std::uint64_t bytes, const FolderTrust& trust);

}  // namespace levada
