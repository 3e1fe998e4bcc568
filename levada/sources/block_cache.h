// Parts of remote files kept on this machine, and fetched before they are read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "levada/sources/file.h"

namespace levada {

struct BlockCacheOptions {
  /// The folder of the file that holds the blocks; the file has no name, so it goes with the process. Empty: memory.
  std::string dir = {};
  std::uint64_t max_bytes = std::uint64_t{128} << 20;  ///< of all blocks; in a folder at most a quarter of what is free
  std::uint64_t ahead_bytes = std::uint64_t{128}
                              << 20;  ///< of blocks that are fetched before they are read; at most half of all
  std::uint64_t block_bytes = std::uint64_t{256} << 10;
  std::uint64_t fetch_bytes = std::uint64_t{8} << 20;  ///< of one fetch, at most, where blocks follow each other
  int fetches = 16;                                    ///< of announced blocks, under way at once
};

/// Blocks of files that are slow to read, bounded, the least recently read evicted first. Several readers of a block
/// wait for one fetch. What readers announce (File::will_read()) is fetched ahead by threads of the cache; ranges that
/// are announced side by side progress side by side, and one that is announced bit by bit in order is fetched further
/// than announced. A fetch that fails is reported to those who wait for it; a fetch
/// ahead that nobody waits for yet is tried again by its reader. Any thread may call. A process that is forked cannot
/// use its parent's cache, and reads of such files throw SourceError there.
class BlockCache : public std::enable_shared_from_this<BlockCache> {
 public:
  /// Throws SourceError, with the remedy, if the folder cannot be written.
  explicit BlockCache(const BlockCacheOptions& options);
  /// Does not wait for the fetches under way: a fetch keeps what it needs.
  ~BlockCache();

  /// Returns `file` as it is now, read through this cache, which it keeps alive. Reads of `file` must fail once it has
  /// been changed.
  std::unique_ptr<File> wrap(std::unique_ptr<File> file);

 private:
  struct Source;
  using SharedSource = std::shared_ptr<const Source>;
  class State;
  class CachedFile;
  std::shared_ptr<State> state_;
};

}  // namespace levada
