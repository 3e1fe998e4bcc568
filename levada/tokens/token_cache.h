// Text as token files that are kept from run to run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/unique_fd.h"
#include "levada/sources/token_file.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"

namespace levada {

/// XDG_CACHE_HOME/levada or ~/.cache/levada; empty where neither variable is set.
std::string default_cache_dir();
/// Where a TokenCache of this dir, as in TokenCacheOptions, keeps its entries; empty if it cannot tell.
std::string token_cache_folder(const std::string& dir);

struct TokenCacheOptions {
  std::string dir = {};                    ///< empty: default_cache_dir()
  std::optional<std::uint64_t> max_bytes;  ///< empty: half of the file system
  /// Told in a sentence why it waits, and that the cache is full. Called by any thread, several at once.
  std::function<void(const std::string&)> warn = {};
};

/// What decides which tokens a text becomes, and how that is done.
struct TokenizeTexts {
  std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();
  std::int64_t end_of_document = 256;  ///< without meaning for chats
  TextOptions text = {};               ///< chats: if the tokenizer's are
  int threads = 0;                     ///< 0: as many as there are cores
  /// Told of the files that are being tokenized, by one thread at a time: bytes of all of them.
  std::function<void(const PrepareProgress&)> progress = {};
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
  std::vector<TextFormat> formats = {};  ///< besides those that read_text() takes
};

/// The tokens of a text.
struct CachedTokens {
  std::string prefix;  ///< of the .bin and .idx
  std::int64_t bad_lines = 0;
  std::string digest;            ///< TokenFile::contents().digest is to be this one
  std::uint64_t bytes_read = 0;  ///< of text; 0 if the tokens were there
};

/// An entry, for those who look after the cache.
struct TokenCacheEntry {
  std::string prefix, source, tokenizer;
  std::int64_t tokens = 0, documents = 0;
  std::uint64_t bytes = 0;
  std::int64_t last_used = 0;  ///< seconds since 1970
  bool in_use = false;
};

/// A folder of .bin/.idx pairs, each with a .json that says of which text and tokenizer. An entry belongs to a file as
/// it was: path, size, time of change, sampled bytes; and to the tokenizer's digest and what else decides its tokens.
/// It is found only when it is whole. Any number of processes of one user, also on hosts that share the folder, may use
/// it: one of them makes an entry while the others wait, and goes on with what was finished where another was killed.
/// What a TokenCache has given out stays until it is destroyed, however full the folder is. Any thread may call.
class TokenCache {
 public:
  /// Throws SourceError, with the remedy, if the folder cannot be written.
  explicit TokenCache(TokenCacheOptions options);
  ~TokenCache();

  /// The tokens of all these files, in their order; makes those that are missing, several files side by side. Throws
  /// SourceError for what cannot be read, tokenized or written.
  std::vector<CachedTokens> tokenize(const std::vector<std::string>& paths, const TokenizeTexts& how);

  /// All entries, the one that was used last first.
  std::vector<TokenCacheEntry> entries() const;
  /// Removes entries, the one that was used the longest ago first and none in use, until the others have `max_bytes` at
  /// most; also what killed processes have left, and entries of another version. Returns the entries it removed.
  std::vector<TokenCacheEntry> prune(std::uint64_t max_bytes);
  /// Reads all of an entry. Throws SourceError if it is damaged.
  void check(const TokenCacheEntry& entry) const;

  const std::string& dir() const { return dir_; }

 private:
  struct Work;
  CachedTokens find_or_make(const std::string& path, const TokenizeTexts& how, int threads, Work& work);
  std::optional<CachedTokens> find(const std::string& prefix, const std::string& key);
  CachedTokens make(const std::string& prefix, const std::string& key, const std::string& path,
                    const TokenizeTexts& how, int threads, Work& work);
  void note_use(const std::string& prefix);
  void bound();

  TokenCacheOptions options_;
  std::string dir_;
  std::mutex mutex_;  ///< of what follows
  UniqueFd uses_;     ///< the list of entries in use, locked as long as this lives
  std::string uses_path_;
  bool has_warned_ = false;
};

}  // namespace levada
