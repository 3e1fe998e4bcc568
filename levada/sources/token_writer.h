// Where a source's tokens go: the rows `tokens` and `labels` of consecutive samples.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace levada {

/// Takes a row of n + 1 tokens t and lays it out as tokens t[0..n) and labels t[1..n]. Borrows both.
class TokenWriter {
 public:
  /// `labels` is as long as `tokens`.
  TokenWriter(std::span<std::int64_t> tokens, std::span<std::int64_t> labels) : tokens_(tokens), labels_(labels) {}

  /// Tokens still to come.
  std::size_t missing() const { return tokens_.size() + 1 - at_; }

  /// `stored`: tokens as little-endian numbers of this width, no more than missing(). Says whether none is negative,
  /// if the numbers are signed.
  template <typename Unsigned>
  bool write_stored(std::string_view stored, bool is_signed) {
    auto count = stored.size() / sizeof(Unsigned);
    const auto* from = stored.data();
    std::int64_t all = 0;
    const auto write_one = [&] {
      const auto token = load<Unsigned>(from);
      write(token);
      all |= token;
      from += sizeof(Unsigned);
      --count;
    };
    if (count > 0 && at_ == 0) write_one();
    const auto inner = std::min(count, tokens_.size() - std::min(at_, tokens_.size()));
    if (inner > 0) all |= write_inner<Unsigned>(from, inner);
    from += inner * sizeof(Unsigned);
    count -= inner;
    if (count > 0) write_one();
    constexpr auto sign = std::int64_t{1} << (sizeof(Unsigned) * 8 - 1);
    return !is_signed || (all & sign) == 0;
  }

  void write(std::int64_t token) {
    if (at_ < tokens_.size()) tokens_[at_] = token;
    if (at_ > 0) labels_[at_ - 1] = token;
    ++at_;
  }

 private:
  template <typename Unsigned>
  static std::int64_t load(const char* from) {
    static_assert(std::endian::native == std::endian::little);
    Unsigned value;
    std::memcpy(&value, from, sizeof(value));
    return static_cast<std::int64_t>(value);
  }

  /// Numbers that are both tokens and labels: widened once, in a loop that compilers make vectors of. Gives the bits
  /// that any of them has.
  template <typename Unsigned>
  std::int64_t write_inner(const char* __restrict from, std::size_t count) {
    auto* __restrict tokens = tokens_.data() + at_;
    auto* __restrict labels = labels_.data() + at_ - 1;
    std::int64_t all = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto token = load<Unsigned>(from + i * sizeof(Unsigned));
      tokens[i] = labels[i] = token;
      all |= token;
    }
    at_ += count;
    return all;
  }

  std::span<std::int64_t> tokens_, labels_;
  std::size_t at_ = 0;
};

}  // namespace levada
