// Indexes kept from one run to the next.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "levada/base/atomic_file.h"
#include "levada/sources/file_index.h"

namespace levada {

/// XDG_CACHE_HOME/levada or ~/.cache/levada; empty where neither variable is set.
std::string default_cache_dir();

/// What an index holds for: a file as it was, read in one way. `kind` names the format and the version of its index.
struct IndexKey {
  std::string kind;
  std::string real_path;
  FileIdentity identity;
  std::string text_field;
  bool skip_bad = false;
  std::int64_t stride = 0, phase = 0;
};

/// The index of one key in a folder of the cache. One thread at a time.
class KeptIndex {
 public:
  KeptIndex(std::string dir, IndexKey key) : dir_(std::move(dir)), key_(std::move(key)) {}

  /// Empty if there is none, it is of another file or way to read it, it is damaged, or it is no regular file of this
  /// user's own: those of others may lie.
  std::optional<FileIndex> load() const;
  /// Before the index is made: while another process makes it, waits, and then returns its index. Otherwise others wait
  /// for this process as long as this lives. Calls `on_wait` first if it has to wait. Throws SourceError where nothing
  /// can be kept.
  std::optional<FileIndex> load_or_reserve(const std::function<void()>& on_wait);
  /// After load_or_reserve(). Whole under its name or not at all. Throws SourceError.
  void store(const FileIndex& index);
  /// Since it does not hold for the file.
  void remove() const;

 private:
  std::string dir_;
  IndexKey key_;
  std::unique_ptr<AtomicFile> place_;
};

/// Removes what processes that were killed while they stored an index have left in `dir`.
void remove_abandoned_indexes(const std::string& dir);

}  // namespace levada
