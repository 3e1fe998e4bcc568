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

/// A mark records that an entry was verified completely: see CacheFolder::verify().
inline constexpr std::string_view meta_extension = ".json", mark_extension = ".verified";
inline std::string meta_path(const std::string& prefix) {
  return prefix + std::string(meta_extension);
}
inline std::string mark_path(const std::string& prefix) {
  return prefix + std::string(mark_extension);
}

/// Returns the file name of an entry, without extension.
std::string entry_name(const std::string& key);
/// Returns the name of the entry that a file name belongs to; empty if it cannot be that of an entry.
std::string_view entry_of_file(std::string_view file);
/// Returns whether a file belongs to an entry of any token cache: the .json next to it describes an entry of its name.
bool is_file_of_entry(const std::string& path);

/// The content of an entry's .json.
struct CacheEntryMeta {
  static constexpr int version = 2;

  std::string key;                     ///< CacheKey::text
  std::string content;                 ///< digest of all bytes of the text
  std::vector<std::int64_t> modified;  ///< modification times of texts known to have this content, in ns since 1970
  std::string source, tokenizer, digest;
  std::string checksum;  ///< checksum of all bytes of the .bin, then the .idx
  std::int64_t tokens = 0, documents = 0;
  BadLines bad_lines;
  std::uint64_t bytes = 0;

  std::string text() const;
  /// Returns nothing for a file that is missing, damaged, of another version, or not covered by `trust`. Throws
  /// StorageFault for one that `trust` covers, but that cannot be read now.
  static std::optional<CacheEntryMeta> read(const std::string& path, const FolderTrust& trust);
  /// Returns whether a text with this modification time is known to have this content. Returns true for 0, because the
  /// key then identifies the content, and false for CacheKey::unknown_time.
  bool is_of(std::int64_t modified_ns) const;
};

/// Returns whether `trust` covers the .bin and the .idx, and their sizes add up to `bytes`.
bool has_all_bytes(const std::string& prefix, std::uint64_t bytes, const FolderTrust& trust);

}  // namespace levada
