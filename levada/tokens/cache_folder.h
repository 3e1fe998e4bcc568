// The folder of a token cache: its lock, what is in use, and eviction.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/private_files.h"
#include "levada/base/unique_fd.h"
#include "levada/tokens/cache_entry.h"

namespace levada {

/// An entry, for those who look after the cache.
struct TokenCacheEntry {
  std::string prefix, source, tokenizer;
  std::int64_t tokens = 0, documents = 0;
  std::uint64_t bytes = 0;
  std::int64_t last_used = 0;  ///< seconds since 1970
  bool in_use = false;
};

/// The files of an entry do not have the checksum that they were written with.
class DamagedEntry : public SourceError {
 public:
  using SourceError::SourceError;
};

/// Entries noted as in use stay so until this is destroyed. Any thread may call. Errors are SourceErrors with the
/// remedy.
class CacheFolder {
 public:
  /// Creates a missing folder. Throws SourceError if it cannot be created, or if other users than those that
  /// FolderTrust names can replace files in it.
  explicit CacheFolder(std::string dir);
  ~CacheFolder();

  const std::string& dir() const { return dir_; }
  const FolderTrust& trust() const { return trust_; }
  std::string prefix_of(const std::string& key) const;
  /// Returns an error's text with what to do where there is no room to write.
  std::string with_remedy(std::string_view error) const;

  /// Keeps others from evicting, until it is destroyed. Holds nothing in a folder that cannot be written.
  UniqueFd lock_for_use() const;
  /// Returns an entry that counts and is whole.
  std::optional<CacheEntryMeta> find(const std::string& prefix) const;
  /// Notes entries as in use, with lock_for_use() held. Returns once other hosts can read that.
  void note_uses(const std::vector<std::string>& prefixes);

  /// Returns all entries, the most recently used first.
  std::vector<TokenCacheEntry> entries() const;
  /// Evicts the least recently used entries that are not in use until at most `max_bytes` remain; also removes the
  /// leftovers of killed processes and entries of another version. Returns the evicted entries. Evicts nothing where a
  /// process's list of entries in use cannot be read.
  std::vector<TokenCacheEntry> prune(std::uint64_t max_bytes);
  /// Throws DamagedEntry if an entry is damaged, and SourceError if it cannot be read; neither if it has been evicted
  /// since. Reads all of it. Calls `between_reads`, which may throw to end the check.
  void check(const std::string& prefix, const std::function<void()>& between_reads = {}) const;
  /// Does the same unless the entry's mark says that it was done, and then writes that mark. A mark holds the checksum,
  /// and the sizes, inodes and times of change of the two files: it does not count for an entry that was written again.
  /// Only marks that the folder's FolderTrust covers count. Does nothing for an entry that is replaced while it is
  /// read.
  void verify(const std::string& prefix, const std::function<void()>& between_reads) const;
  /// Evicts an entry if it is damaged, even if it is in use. Returns whether it has done so.
  bool evict_damaged(const std::string& prefix);

 private:
  UniqueFd lock(int operation) const;
  std::vector<TokenCacheEntry> read_entries() const;
  void remove_entry(const std::string& prefix) const;
  void remove_unreadable() const;
  std::optional<std::string> mark_of(const std::string& prefix) const;
  void open_list();
  [[noreturn]] void fail(std::string_view what) const;

  const std::string dir_;
  const FolderTrust trust_;
  std::mutex mutex_;  // guards what follows
  UniqueFd uses_;     ///< the list of entries in use, locked as long as this lives
  std::string uses_path_;
};

}  // namespace levada
