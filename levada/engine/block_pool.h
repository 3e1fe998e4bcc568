// The memory of one rank's blocks.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/engine/event_count.h"

namespace levada {

/// Page-aligned blocks in a few sizes per power of two; the block given back last is the next of its size, while it is
/// warm in the cache. Blocks keep the pool alive, so memory may come back after every engine has gone. Any thread.
class BlockPool final : public Block::Home, public std::enable_shared_from_this<BlockPool> {
 public:
  /// `changed` is notified when memory comes back.
  BlockPool(std::size_t limit, std::shared_ptr<EventCount> changed);
  ~BlockPool() override;

  /// As Engine::try_allocate().
  std::optional<Block> try_allocate(std::size_t bytes);
  /// Whether try_allocate() would not come back empty.
  bool may_allocate(std::size_t bytes);
  /// As Engine::trim().
  std::size_t trim();
  /// Bytes in blocks that are out.
  std::size_t taken() const;
  void give_back(std::byte* data, std::size_t size) noexcept override;

 private:
  std::size_t block_size(std::size_t bytes) const;
  void drop_free(std::size_t needed);

  const std::size_t limit_;
  const std::shared_ptr<EventCount> changed_;
  mutable std::mutex mutex_;
  std::size_t taken_ = 0;
  std::size_t free_bytes_ = 0;
  std::map<std::size_t, std::vector<std::byte*>> free_;
};

}  // namespace levada
