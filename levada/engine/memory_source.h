// Address space for blocks, of which only what is used holds memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "levada/engine/intervals.h"

namespace levada {

/// A range of address space for a BlockPool: a mapping of shared memory, or of the heap. Intervals are of whole pages,
/// counted from its first byte. Several threads may call at once, for intervals that do not overlap.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  /// Returns all of it. Always the same.
  virtual std::span<std::byte> memory() const = 0;
  /// Makes `interval` resident and writable, so that using it neither faults nor fails. Returns false where the system
  /// has no memory for it at the moment.
  virtual bool populate(Interval interval) noexcept = 0;
  /// Gives the memory of `interval` back to the system; its bytes are lost. Returns false where the system refuses, and
  /// then nothing has changed.
  virtual bool discard(Interval interval) noexcept = 0;
};

/// Faults in the writable pages of `memory`, each once. Returns false where the system has none at the moment.
bool populate_pages(std::span<std::byte> memory) noexcept;

/// Memory of this process alone, in a reservation of address space of its own.
class HeapSource final : public MemorySource {
 public:
  /// Reserves address space of `bytes`, or less: at most an eighth of what ulimit -v leaves to this process, so that
  /// several sources and the rest of the process find room, and whatever the system grants. Throws EngineError where it
  /// grants none.
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
