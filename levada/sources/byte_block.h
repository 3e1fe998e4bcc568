// 64 bytes at a time, compared at once: what scans text in a few cycles a block.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace levada {

/// 64 bytes from memory. A value.
class ByteBlock {
 public:
  static constexpr std::size_t size = 64;

  /// `from`: 64 bytes that can be read.
  explicit ByteBlock(const char* from) { std::memcpy(parts_, from, size); }
  void store(char* to) const { std::memcpy(to, parts_, size); }

  /// Bit i: whether byte i is `wanted`.
  std::uint64_t equal(char wanted) const {
    std::uint64_t bits = 0;
    for (unsigned part = 0; part < parts; ++part) bits |= equal_in(parts_[part], wanted) << (part * part_bytes);
    return bits;
  }

 private:
#if defined(__SSE2__)
  using Part = __m128i;
  static std::uint64_t equal_in(Part part, char wanted) {
    return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(part, _mm_set1_epi8(wanted))));
  }
#else
  using Part = std::uint64_t;
  static std::uint64_t equal_in(Part part, char wanted) {
    static_assert(std::endian::native == std::endian::little);
    constexpr std::uint64_t ones = 0x0101010101010101, low = 0x7f7f7f7f7f7f7f7f;
    const auto difference = part ^ (ones * static_cast<unsigned char>(wanted));
    // The top bit of each byte: set where the byte of `difference` is zero, whatever its neighbours are.
    const auto zero = ~(((difference & low) + low) | difference | low);
    // Gathers the top bits in the top byte.
    return ((zero >> 7) * 0x0102040810204080) >> 56;
  }
#endif
  static constexpr unsigned part_bytes = sizeof(Part), parts = size / part_bytes;

  Part parts_[parts];
};

}  // namespace levada
