#include "levada/sources/memory_claims.h"

#include <algorithm>

namespace levada {
namespace {

/// Reading the limits takes up to a millisecond, so smaller claims are not checked one by one.
constexpr std::uint64_t small_claims = std::uint64_t{1} << 20;

}  // namespace

MemoryLimits process_memory_limits() {
  auto limits = memory_limits();
  limits.available = std::min(limits.available, unused_address_space());
  return limits;
}

void MemoryClaims::add(std::uint64_t bytes, std::string_view what, std::string_view remedy) {
  const std::lock_guard lock(
      mutex_);  // Held while the limits are read: memory settled during the read would count as available.
  if (unchecked_ + bytes >= small_claims) {
    auto limits = limits_();
    limits.available -= std::min(limits.available, claimed_);
    expect_memory(bytes, limits, what, remedy);
    unchecked_ = 0;
  } else {
    unchecked_ += bytes;
  }
  claimed_ += bytes;
}

void MemoryClaims::settle(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  claimed_ -= bytes;
}

void MemoryClaims::Claim::add(std::uint64_t bytes, std::string_view what, std::string_view remedy) {
  all_.add(bytes, what, remedy);
  bytes_ += bytes;
}

void MemoryClaims::Claim::settle(std::uint64_t bytes) {
  bytes = std::min(bytes, bytes_);
  all_.settle(bytes);
  bytes_ -= bytes;
}

}  // namespace levada
