// Address space for blocks, which consumes memory only for the parts in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "levada/engine/intervals.h"

namespace levada {

/// A range of address space for a BlockPool: a mapping of shared memory, or of the heap. Intervals consist of whole
/// pages and are relative to its first byte. Several threads may call concurrently for intervals that do not overlap.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  /// Returns the whole range, which never changes.
  virtual std::span<std::byte> memory() const = 0;
  /// Makes `interval` resident and writable, so that using it neither faults nor fails. Returns false if the system
  /// lacks the memory now.
  virtual bool populate(Interval interval) noexcept = 0;
  /// Releases the memory of `interval` to the system; its bytes are lost. Returns false, with no effect, if the system
  /// refuses.
  virtual bool discard(Interval interval) noexcept = 0;
};

/// Faults in every page of `memory`, which must be writable. Returns false if the system lacks the memory now.
bool populate_pages(std::span<std::byte> memory) noexcept;

/// Private memory of this process in a separate reservation of address space.
class HeapSource final : public MemorySource {
 public:
  /// Reserves `bytes` of address space, or less: at most an eighth of what ulimit -v leaves to this process, so that
  /// several sources and the rest of the process fit, and no more than the system grants. Throws EngineError if the
  /// system grants none.
  explicit HeapSource(std::uint64_t bytes);
  ~HeapSource() override;
  HeapSource(const HeapSource&) = delete;
  HeapSource& operator=(const HeapSource&) = delete;

  std::span<std::byte> memory() const override { return memory_; }
  bool populate(Interval interval) noexcept override;
  bool discard(Interval interval) noexcept override;

 private:
  std::span<std::byte> memory_;
};

}  // namespace levada
