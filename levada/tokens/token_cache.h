// A cache on disk of the tokens of text files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/base/unique_fd.h"
#include "levada/sources/token_file.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"

namespace levada {

/// XDG_CACHE_HOME/levada or ~/.cache/levada; empty where neither variable is set.
std::string default_cache_dir();
/// Returns the folder of the entries of a TokenCache with TokenCacheOptions::dir == dir; empty if it is not known.
std::string token_cache_folder(const std::string& dir);

struct TokenCacheOptions {
  std::string dir = {};                    ///< empty: default_cache_dir()
  std::optional<std::uint64_t> max_bytes;  ///< empty: half of the file system
  /// Receives a sentence when the cache waits for another process and when it is full. Any thread may call it, several
  /// at once.
  std::function<void(const std::string&)> warn = {};
};

/// What determines the tokens of a text, and how they are made.
struct TokenizeTexts {
  std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();
  std::int64_t end_of_document = 256;  ///< ignored for chats
  TextOptions text = {};               ///< chats: if the tokenizer's are
  int threads = 0;                     ///< 0: as many as there are cores
  /// Receives the progress over the bytes of all files being tokenized. Called by one thread at a time.
  std::function<void(const PrepareProgress&)> progress = {};
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
  std::vector<TextFormat> formats = {};  ///< besides those that read_text() takes
};

/// The tokens of a text.
struct CachedTokens {
  std::string prefix;  ///< of the .bin and .idx
  std::int64_t bad_lines = 0;
  std::string digest;            ///< TokenFile::contents().digest is to be this one
  std::uint64_t bytes_read = 0;  ///< of text; 0 if the tokens were cached
};

/// An entry, for those who look after the cache.
struct TokenCacheEntry {
  std::string prefix, source, tokenizer;
  std::int64_t tokens = 0, documents = 0;
  std::uint64_t bytes = 0;
  std::int64_t last_used = 0;  ///< seconds since 1970
  bool in_use = false;
};

/// A folder of .bin/.idx pairs, each with a .json that names its text and tokenizer. The key of an entry is the file's
/// path, size, times of modification and change and sampled bytes, the tokenizer's digest, and all else that determines
/// the tokens.
/// Incomplete entries are never found. Any number of processes of one user may use a folder, also on several hosts: one
/// of them makes an entry while the others wait, and one that follows a killed process keeps the entries that it
/// finished. Entries are for this user only, and counted as none if another user made or may write to them: open them
/// with open_private_file(). Entries that a TokenCache has returned are not evicted before it is destroyed. Any thread
/// may call.
class TokenCache {
 public:
  /// Creates a missing folder for this user only. Throws SourceError, with the remedy, if it cannot be created, or if
  /// other users can replace files in it. One that cannot be written, such as a read-only mount, serves this user's
  /// entries that it has.
  explicit TokenCache(TokenCacheOptions options);
  ~TokenCache();

  /// Returns the tokens of all these files, in their order. Makes missing entries, several files in parallel. Throws
  /// SourceError for a file that cannot be read, tokenized or written.
  std::vector<CachedTokens> tokenize(const std::vector<std::string>& paths, const TokenizeTexts& how);

  /// Returns all entries, the most recently used first.
  std::vector<TokenCacheEntry> entries() const;
  /// Evicts the least recently used entries that are not in use until at most `max_bytes` remain; also removes the
  /// leftovers of killed processes and entries of another version. Leaves files with names that no entry makes, and
  /// those of other users. Returns the evicted entries. Throws SourceError, and evicts nothing, if a process's list of
  /// entries in use cannot be read.
  std::vector<TokenCacheEntry> prune(std::uint64_t max_bytes);
  /// Reads all of an entry. Throws SourceError if it is damaged; not if it has been evicted meanwhile.
  void check(const TokenCacheEntry& entry) const;
  /// Evicts that entry if it is damaged, even if it is in use. Returns whether it has done so.
  bool evict_damaged(const std::string& prefix);

  const std::string& dir() const { return dir_; }

 private:
  struct Work;
  struct Text;
  CachedTokens wait_or_make(const Text& text, const TokenizeTexts& how, Work& work);
  /// Empty for each text that has no entry; the others are noted as in use.
  std::vector<std::optional<CachedTokens>> find(std::span<const Text> texts);
  CachedTokens make(const Text& text, const TokenizeTexts& how, Work& work);
  /// Appends lines to the list of entries in use. Returns once other hosts can read them.
  void note_uses(const std::string& lines);
  void bound();
  void warn_once(const std::string& text);

  TokenCacheOptions options_;
  std::string dir_;
  std::mutex mutex_;  ///< of what follows
  UniqueFd uses_;     ///< the list of entries in use, locked as long as this lives
  std::string uses_path_;
  bool has_warned_ = false;
};

}  // namespace levada
