// A cache on disk of the tokens of text files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/atomic_file.h"
#include "levada/sources/token_file.h"
#include "levada/tokens/cache_folder.h"
#include "levada/tokens/cache_key.h"

namespace levada {

/// XDG_CACHE_HOME/levada or ~/.cache/levada; empty where neither variable is set.
std::string default_cache_dir();
/// Returns the folder of the entries of a TokenCache with TokenCacheOptions::dir == dir; empty if it is not known.
std::string token_cache_folder(const std::string& dir);
/// The same; throws SourceError if it is not known.
std::string token_cache_folder_or_fail(const std::string& dir);

struct TokenCacheOptions {
  std::string dir = {};                    ///< empty: default_cache_dir()
  std::optional<std::uint64_t> max_bytes;  ///< empty: half of the file system
  /// Receives a sentence when the cache waits for another process, evicts entries, and is full. Any thread may call it,
  /// several at once.
  std::function<void(const std::string&)> warn = {};
};

/// The tokens of a text.
struct CachedTokens {
  std::string prefix;  ///< of the .bin and .idx
  BadLines bad_lines;
  std::string digest;            ///< TokenFile::contents().digest is to be this one
  std::uint64_t bytes_read = 0;  ///< of text; 0 if the tokens were cached
};

/// A folder of .bin/.idx pairs, each with a .json that names its text and tokenizer. An entry is found by CacheKey: by
/// the content of the text and all else that determines the tokens. Of a text that was written at another time than
/// those that the entry is known to be of, all bytes are read and compared, once. Incomplete entries are never found.
/// Any number of processes may use a folder, also on several hosts, and of several users where FolderTrust says so: one
/// of them makes an entry while the others make other ones, and one that follows a killed process keeps the entries
/// that it finished. Open entries with open(). Those that a TokenCache has returned are not evicted before it is
/// destroyed. Any thread may call.
class TokenCache {
 public:
  /// Creates a missing folder for this user only. Throws SourceError, with the remedy, if it cannot be created, or if
  /// other users can replace files in it. One that cannot be written, such as a read-only mount, serves the entries
  /// that it has.
  explicit TokenCache(TokenCacheOptions options);

  /// Returns the tokens of all these files, in their order. Makes missing entries, several files in parallel. Throws
  /// SourceError that names all files that cannot be read, before anything is tokenized, and afterwards one that names
  /// all that cannot be tokenized; at once, if an entry cannot be written.
  std::vector<CachedTokens> tokenize(const std::vector<std::string>& paths, const TokenizeTexts& how);
  /// Opens a file of an entry.
  std::unique_ptr<File> open(const std::string& path) const { return open_trusted_file(path, folder_.trust()); }

  CacheFolder& folder() { return folder_; }

 private:
  struct Work;
  struct Text;
  /// Empty for each text that has no entry, or none that is known to be of it; the others are noted as in use.
  std::vector<std::optional<CachedTokens>> find(std::span<const Text> texts);
  CachedTokens make_with_room(const Text& text, const TokenizeTexts& how, Work& work);
  CachedTokens find_or_make(Text text, const TokenizeTexts& how, Work& work);
  std::optional<CachedTokens> recognize(Text& text, const TokenizeTexts& how);
  CachedTokens make(const Text& text, const TokenizeTexts& how, Work& work, AtomicFile& meta_file);
  bool bound(std::uint64_t max_bytes, std::string_view why);
  void warn(const std::string& text) const;

  TokenCacheOptions options_;
  CacheFolder folder_;
  std::mutex mutex_;  // guards what follows
  bool has_warned_ = false;
};

}  // namespace levada
