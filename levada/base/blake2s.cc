#include "levada/base/blake2s.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "levada/base/error.h"

namespace levada {
namespace {

static_assert(std::endian::native == std::endian::little, "words are loaded as they are");

constexpr std::size_t block_bytes = 64;
constexpr std::array<std::uint32_t, 8> initial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
constexpr std::array<std::array<std::uint8_t, 16>, 10> schedule = {{
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
}};

/// The words that each of a round's eight mixes uses: the columns, then the diagonals.
constexpr std::array<std::array<std::uint8_t, 4>, 8> lanes = {{
    {0, 4, 8, 12},
    {1, 5, 9, 13},
    {2, 6, 10, 14},
    {3, 7, 11, 15},
    {0, 5, 10, 15},
    {1, 6, 11, 12},
    {2, 7, 8, 13},
    {3, 4, 9, 14},
}};

class State {
 public:
  explicit State(std::size_t key_bytes) : hash_(initial) {
    hash_[0] ^= 0x01010000U ^ (static_cast<std::uint32_t>(key_bytes) << 8U) ^ std::uint32_t{sizeof(Blake2s)};
  }

  /// `block` has at most 64 bytes; only the last one may have fewer.
  void compress(ByteView block, bool is_last) {
    std::array<std::uint32_t, 16> words{};
    std::ranges::copy(block, std::as_writable_bytes(std::span(words)).begin());
    count_ += is_last ? block.size() : block_bytes;
    std::array<std::uint32_t, 16> v{};
    std::ranges::copy(hash_, v.begin());
    std::ranges::copy(initial, v.begin() + 8);
    v[12] ^= static_cast<std::uint32_t>(count_);
    v[13] ^= static_cast<std::uint32_t>(count_ >> 32U);
    if (is_last) v[14] = ~v[14];
    for (const auto& order : schedule) {
      for (std::size_t i = 0; i < lanes.size(); ++i) mix(v, lanes[i], words[order[2 * i]], words[order[2 * i + 1]]);
    }
    for (std::size_t i = 0; i < hash_.size(); ++i) hash_[i] ^= v[i] ^ v[i + 8];
  }

  Blake2s hash() const { return std::bit_cast<Blake2s>(hash_); }

 private:
  static void mix(std::array<std::uint32_t, 16>& v, const std::array<std::uint8_t, 4>& lane, std::uint32_t x,
                  std::uint32_t y) {
    std::uint32_t& a = v[lane[0]];
    std::uint32_t& b = v[lane[1]];
    std::uint32_t& c = v[lane[2]];
    std::uint32_t& d = v[lane[3]];
    a += b + x;
    d = std::rotr(d ^ a, 16);
    c += d;
    b = std::rotr(b ^ c, 12);
    a += b + y;
    d = std::rotr(d ^ a, 8);
    c += d;
    b = std::rotr(b ^ c, 7);
  }

  std::array<std::uint32_t, 8> hash_;
  std::uint64_t count_ = 0;
};

}  // namespace

Blake2s blake2s(ByteView message, ByteView key) {
  if (key.size() > sizeof(Blake2s)) throw InvalidArgument("a key of BLAKE2s has at most 32 bytes");
  State state(key.size());
  if (!key.empty()) {
    std::array<std::byte, block_bytes> block{};
    std::ranges::copy(key, block.begin());
    state.compress(block, message.empty());
    if (message.empty()) return state.hash();
  }
  for (; message.size() > block_bytes; message = message.subspan(block_bytes)) {
    state.compress(message.first(block_bytes), false);
  }
  state.compress(message, true);
  return state.hash();
}

}  // namespace levada
