// Memory that several threads are about to use.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>
#include <utility>

#include "levada/base/memory_limits.h"

namespace levada {

/// Returns memory_limits(), with available also limited by unused_address_space().
MemoryLimits process_memory_limits();

/// Adds up the memory that concurrently opened files are about to use, so that each file is checked against what the
/// others leave. Thread-safe.
class MemoryClaims {
 public:
  explicit MemoryClaims(std::function<MemoryLimits()> limits = process_memory_limits) : limits_(std::move(limits)) {}

  /// The memory that one user has announced and not used yet. Withdrawn on destruction.
  class Claim {
   public:
    explicit Claim(MemoryClaims& all) : all_(all) {}
    ~Claim() { settle(bytes_); }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    /// Announces `bytes` more. Throws InvalidArgument, as expect_memory() does, if all claims together exceed what is
    /// available.
    void add(std::uint64_t bytes, std::string_view what, std::string_view remedy = {});
    /// Withdraws `bytes` that have been written to, and so no longer count as available, or never will be.
    void settle(std::uint64_t bytes);

   private:
    MemoryClaims& all_;
    std::uint64_t bytes_ = 0;
  };

 private:
  void add(std::uint64_t bytes, std::string_view what, std::string_view remedy);
  void settle(std::uint64_t bytes);

  std::function<MemoryLimits()> limits_;
  std::mutex mutex_;
  std::uint64_t claimed_ = 0;    ///< total of all claims
  std::uint64_t unchecked_ = 0;  ///< claimed since the limits were last read
};

}  // namespace levada
