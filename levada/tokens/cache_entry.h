// The files of an entry in a token cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levada {

inline constexpr std::string_view meta_extension = ".json";
inline std::string meta_path(const std::string& prefix) {
  return prefix + std::string(meta_extension);
}

/// Returns the name of the files of an entry, of characters that no shell minds. `source`: what the text is named like.
std::string entry_name(const std::string& source, const std::string& key);
/// Returns the name of the entry that a file is of, by the file's name alone; empty for a name that no entry makes.
std::string_view entry_of_file(std::string_view file);

/// The content of an entry's .json.
struct CacheEntryMeta {
  static constexpr int version = 1;

  std::string key, source, tokenizer, digest;
  std::string checksum;  ///< of all bytes of the .bin, then the .idx
  std::int64_t tokens = 0, documents = 0, bad_lines = 0;
  std::uint64_t bytes = 0;

  std::string text() const;
  /// Empty for a file that is damaged, of another version, or not is_private().
  static std::optional<CacheEntryMeta> read(const std::string& path);
};

/// Returns the content of a regular file of this user; empty for any other, since other users' files are untrusted.
std::optional<std::string> read_own(const std::string& path);
/// Removes a regular file of this user; leaves any other.
void remove_own(const std::string& path);
/// Whether the .bin and the .idx are is_private(), and together of the length that they were written with.
bool has_all_bytes(const std::string& prefix, std::uint64_t bytes);

}  // namespace levada
