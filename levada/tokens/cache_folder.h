// The folder of a token cache: its lock, the entries in use, and eviction.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levada/base/atomic_file.h"
#include "levada/base/error.h"
#include "levada/base/private_files.h"
#include "levada/base/unique_fd.h"
#include "levada/tokens/cache_entry.h"

namespace levada {

/// An entry, for tools that manage the cache.
struct TokenCacheEntry {
  std::string prefix, source, tokenizer;
  std::int64_t tokens = 0, documents = 0;
  std::uint64_t bytes = 0;
  std::int64_t last_used = 0;  ///< seconds since 1970
  bool in_use = false;
};

/// The files of an entry do not match the checksum recorded when they were written.
class DamagedEntry : public SourceError {
 public:
  using SourceError::SourceError;
};

/// A lock of a cache's folder. Releases it even if a process that was forked in the meantime still has the lock's file
/// open: such processes share one lock, which otherwise ends with the last of them.
class FolderLock {
 public:
  FolderLock() = default;  ///< locks nothing
  /// Owns a file that flock(2) has locked.
  explicit FolderLock(UniqueFd locked) : fd_(std::move(locked)) {}
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  UniqueFd fd_;
};

/// The folder of a token cache. Entries marked as in use stay marked until the CacheFolder is destroyed. Thread-safe.
/// Errors are SourceErrors with the remedy.
class CacheFolder {
 public:
  /// Creates a missing folder. Throws SourceError if it cannot be created, or if users that FolderTrust does not trust
  /// can replace files in it.
  /// `warn` receives a line about each long wait for the folder's lock.
  explicit CacheFolder(std::string dir, std::function<void(const std::string&)> warn = {});
  ~CacheFolder();

  const std::string& dir() const { return dir_; }
  const FolderTrust& trust() const { return trust_; }
  std::string prefix_of(const std::string& key) const;
  /// Returns an error's text with its remedy.
  std::string with_remedy(const WriteFailed& error) const;

  /// Prevents eviction by other processes until the returned lock is destroyed. Locks nothing in a read-only folder.
  FolderLock lock_for_use() const;
  /// Returns an entry that is trusted and complete. Throws StorageFault if it cannot be read now.
  std::optional<CacheEntryMeta> find(const std::string& prefix) const;
  /// Marks entries as in use; lock_for_use() must be held. Returns once other hosts can see the marks.
  void note_uses(const std::vector<std::string>& prefixes);

  /// Returns all entries, the most recently used first.
  std::vector<TokenCacheEntry> entries() const;
  /// Evicts the least recently used entries that are not in use until at most `max_bytes` remain. Also removes
  /// leftovers of killed processes, entries of other versions and unused KnownFiles. Returns the evicted entries.
  /// Evicts nothing if some process's list of entries in use cannot be read.
  std::vector<TokenCacheEntry> prune(std::uint64_t max_bytes);
  /// Reads an entry completely. Throws DamagedEntry if it is damaged, and SourceError if it cannot be read, but neither
  /// if it has been evicted in the meantime. Calls `between_reads`, which may throw to abort.
  void check(const std::string& prefix, const std::function<void()>& between_reads = {}) const;
  /// Does the same unless the entry's mark records that it was done before, and then writes the mark. A mark holds the
  /// checksum, and the sizes, inodes and modification times of the two files, so it does not apply to an entry that was
  /// rewritten. Only marks that the folder's FolderTrust covers count. Does nothing for an entry that is replaced while
  /// it is read.
  void verify(const std::string& prefix, const std::function<void()>& between_reads) const;
  /// Evicts an entry if it is damaged, incomplete or not trusted, even if it is in use. Returns whether it did. Throws
  /// StorageFault for an entry that cannot be read now, and keeps it.
  bool evict_damaged(const std::string& prefix);

 private:
  FolderLock lock(int operation) const;
  std::vector<TokenCacheEntry> read_entries() const;
  void remove_entry(const std::string& prefix) const;
  void remove_unreadable() const;
  std::optional<std::string> mark_of(const std::string& prefix) const;
  void open_list();
  [[noreturn]] void fail(std::string_view what) const;
  [[noreturn]] void fail_to_write() const;

  const std::string dir_;
  const std::function<void(const std::string&)> warn_;
  const FolderTrust trust_;
  std::mutex mutex_;  // guards the members below
  UniqueFd uses_;     ///< the list of entries in use, locked while this object exists
  std::string uses_path_;
};

}  // namespace levada
