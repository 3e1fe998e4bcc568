// An on-disk cache of the tokens of text files.
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

/// Returns XDG_CACHE_HOME/levada or ~/.cache/levada; empty if neither variable is set.
std::string default_cache_dir();
/// Returns the folder of the entries of a TokenCache with TokenCacheOptions::dir == dir; empty if unknown. Throws
/// InvalidArgument for a URL.
std::string token_cache_folder(const std::string& dir);
/// The same; throws SourceError if unknown.
std::string token_cache_folder_or_fail(const std::string& dir);

struct TokenCacheOptions {
  std::string dir = {};                    ///< empty: default_cache_dir()
  std::optional<std::uint64_t> max_bytes;  ///< empty: half of the file system
  /// Receives a sentence when the cache waits for another process, evicts entries, or is full. Called on any thread,
  /// also concurrently.
  std::function<void(const std::string&)> warn = {};
};

/// The tokens of a text.
struct CachedTokens {
  std::string prefix;  ///< path of the .bin and .idx, without extension; empty for an empty text that is skipped
  BadLines bad_lines;
  std::string digest;            ///< must match TokenFile::contents().digest
  std::uint64_t bytes_read = 0;  ///< bytes of text read; 0 if the tokens were cached
};

/// A folder of .bin/.idx pairs, each with a .json that names its text and tokenizer. CacheKey finds an entry by the
/// content of the text and everything else that determines the tokens. If the entry has not recorded the text's
/// modification time, all bytes of the text are read and compared, once. Incomplete entries are never found. Any number
/// of processes may share a folder, on several hosts and, if FolderTrust allows it, for several users. While one
/// process makes an entry, the others make different ones, and the successor of a killed process keeps the entries that
/// it finished. The files of an entry must be opened with open(). Entries that a TokenCache has returned are not
/// evicted before it is destroyed. Thread-safe.
class TokenCache {
 public:
  /// Creates a missing folder for this user only. Throws SourceError, with the remedy, if it cannot be created, or if
  /// other users can replace files in it. A read-only folder, such as a read-only mount, serves its existing entries.
  explicit TokenCache(TokenCacheOptions options);

  /// Returns the tokens of all these files, in order. Makes missing entries, several files in parallel. Throws
  /// SourceError that names all files that cannot be read, before tokenizing any; after tokenizing, one that names all
  /// that cannot be tokenized; and immediately if an entry cannot be written.
  std::vector<CachedTokens> tokenize(const std::vector<std::string>& paths, const TokenizeTexts& how);
  /// Opens a file of an entry.
  std::unique_ptr<File> open(const std::string& path) const { return open_trusted_file(path, folder_.trust()); }

  CacheFolder& folder() { return folder_; }

 private:
  struct Work;
  struct Text;
  /// Returns nothing for each text without an entry that is known to be its own; marks the other entries as in use.
  std::vector<std::optional<CachedTokens>> find(std::span<const Text> texts);
  CachedTokens make_with_room(const Text& text, const TokenizeTexts& how, Work& work);
  CachedTokens find_or_make(Text text, const TokenizeTexts& how, Work& work);
  std::optional<CachedTokens> recognize(Text& text, const TokenizeTexts& how, Work& work);
  CachedTokens make(const Text& text, const TokenizeTexts& how, Work& work, AtomicFile& meta_file);
  bool bound(std::uint64_t max_bytes, std::string_view why);
  void warn(const std::string& text) const;

  TokenCacheOptions options_;
  CacheFolder folder_;
  std::mutex mutex_;  // guards has_warned_
  bool has_warned_ = false;
};

}  // namespace levada
