// Caches parts of remote files on this machine, and fetches them before they are read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "levada/sources/file.h"

namespace levada {

struct BlockCacheOptions {
  /// Folder for the file that holds the blocks. The file is unnamed, so it vanishes with the process. Empty: memory.
  std::string dir = {};
  std::uint64_t max_bytes = std::uint64_t{128} << 20;    ///< limit on all blocks; in a folder, also 1/4 of free space
  std::uint64_t ahead_bytes = std::uint64_t{128} << 20;  ///< limit on blocks fetched ahead; at most half of max_bytes
  std::uint64_t block_bytes = std::uint64_t{256} << 10;
  std::uint64_t fetch_bytes = std::uint64_t{8} << 20;  ///< limit on one fetch of adjacent blocks
  int fetches = 16;                                    ///< concurrent fetches of announced blocks
};

/// A bounded cache of blocks of slow files that evicts the least recently read block first. Concurrent readers of a
/// block share one fetch. The cache's threads fetch ahead the ranges that readers announce (File::will_read()). Ranges
/// announced concurrently are fetched concurrently, and a file announced piece by piece, in order, is fetched further
/// than announced. A failed fetch is reported to the readers that wait for it; if no reader waits for a failed
/// fetch-ahead yet, its reader retries it. Thread-safe. A forked process cannot use its parent's cache: reads of such
/// files throw SourceError.
class BlockCache : public std::enable_shared_from_this<BlockCache> {
 public:
  /// Throws SourceError, with the remedy, if the folder is not writable.
  explicit BlockCache(const BlockCacheOptions& options);
  /// Does not wait for running fetches: each keeps the state that it needs alive.
  ~BlockCache();

  /// Returns `file` with its current content, read through this cache, which it keeps alive. Reads of `file` must fail
  /// once it has changed.
  std::unique_ptr<File> wrap(std::unique_ptr<File> file);

 private:
  struct Source;
  using SharedSource = std::shared_ptr<const Source>;
  class State;
  class CachedFile;
  std::shared_ptr<State> state_;
};

}  // namespace levada
