#include "levada/order/permutation.h"

#include <bit>

namespace levada {
namespace {

constexpr std::uint64_t golden = 0x9e3779b97f4a7c15;

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

std::uint64_t derived_seed(std::uint64_t seed, std::uint64_t stream) {
  return mix(mix(seed + golden) ^ mix(stream + golden));
}

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch) : size_(size) {
  const auto bits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(size - 1)));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  // Mixed twice, so that seed 1 in epoch 2 differs from seed 2 in epoch 1.
  auto state = mix(mix(seed + golden) + epoch);
  for (auto& key : keys_) key = mix(state += golden);
}

std::uint64_t Permutation::forward(std::uint64_t value) const {
  const auto mask = (std::uint64_t{1} << half_bits_) - 1;
  auto left = value >> half_bits_, right = value & mask;
  for (const auto key : keys_) {
    const auto mixed = left ^ (mix(right + key) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  auto value = static_cast<std::uint64_t>(index);
  do value = forward(value);
  while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

}  // namespace levada
