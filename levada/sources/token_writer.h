// The destination of a source's tokens: the rows `tokens` and `labels` of consecutive samples.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "levada/sources/id_span.h"

namespace levada {

/// Writes a row of n + 1 tokens t as tokens t[0..n) and labels t[1..n]. Borrows both, and the loss mask.
class TokenWriter {
 public:
  /// `labels` must have the length and width of `tokens`.
  TokenWriter(IdSpan tokens, IdSpan labels, std::span<float> loss_mask = {})
      : tokens_(tokens), labels_(labels), loss_mask_(loss_mask) {}

  /// Returns the number of tokens still to be written.
  std::size_t missing() const { return tokens_.size() + 1 - at_; }
  /// Returns the largest token that can be written.
  std::int64_t largest() const {
    return tokens_.is_narrow() ? std::numeric_limits<std::int32_t>::max() : std::numeric_limits<std::int64_t>::max();
  }

  /// Writes `stored`: little-endian numbers of this width, no more than missing(). Returns whether all of them are ids:
  /// none is negative, if the numbers are signed, or above largest().
  template <typename Unsigned>
  bool write_stored(std::string_view stored, bool is_signed) {
    const auto all =
        tokens_.is_narrow() ? write_as<std::int32_t, Unsigned>(stored) : write_as<std::int64_t, Unsigned>(stored);
    const std::uint64_t max_stored = std::numeric_limits<Unsigned>::max() >> (is_signed ? 1 : 0);
    return (all & ~std::min(max_stored, static_cast<std::uint64_t>(largest()))) == 0;
  }

  /// The same for int32 numbers. A negative number is ~token: sets its label's loss mask to 0.
  void write_masked(std::string_view stored) {
    for (; !stored.empty(); stored.remove_prefix(sizeof(std::int32_t))) {
      const auto number = static_cast<std::int32_t>(load<std::uint32_t>(stored.data()));
      if (number < 0 && at_ > 0) loss_mask_[at_ - 1] = 0;
      write(number < 0 ? ~number : number);
    }
  }

  /// `token` must be between 0 and largest().
  void write(std::int64_t token) {
    if (tokens_.is_narrow()) {
      write_one(static_cast<std::int32_t>(token));
    } else {
      write_one(token);
    }
  }

 private:
  template <typename Id>
  void write_one(Id token) {
    if (at_ < tokens_.size()) tokens_.as<Id>()[at_] = token;
    if (at_ > 0) labels_.as<Id>()[at_ - 1] = token;
    ++at_;
  }

  /// Returns the bitwise OR of the stored numbers.
  template <typename Id, typename Unsigned>
  std::uint64_t write_as(std::string_view stored) {
    auto count = stored.size() / sizeof(Unsigned);
    const auto* from = stored.data();
    std::uint64_t all = 0;
    const auto write_next = [&] {
      const auto token = load<Unsigned>(from);
      write_one(static_cast<Id>(token));
      all |= token;
      from += sizeof(Unsigned);
      --count;
    };
    if (count > 0 && at_ == 0) write_next();
    const auto inner = std::min(count, tokens_.size() - std::min(at_, tokens_.size()));
    if (inner > 0) all |= write_inner<Id, Unsigned>(from, inner);
    from += inner * sizeof(Unsigned);
    count -= inner;
    if (count > 0) write_next();
    return all;
  }

  template <typename Unsigned>
  static Unsigned load(const char* from) {
    static_assert(std::endian::native == std::endian::little);
    Unsigned value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }

  /// Converts numbers that are both tokens and labels in one loop that compilers can vectorize.
  template <typename Id, typename Unsigned>
  Unsigned write_inner(const char* __restrict from, std::size_t count) {
    auto* __restrict tokens = tokens_.as<Id>().data() + at_;
    auto* __restrict labels = labels_.as<Id>().data() + at_ - 1;
    Unsigned all = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto token = load<Unsigned>(from + i * sizeof(Unsigned));
      tokens[i] = labels[i] = static_cast<Id>(token);
      all = static_cast<Unsigned>(all | token);
    }
    at_ += count;
    return all;
  }

  IdSpan tokens_, labels_;
  std::span<float> loss_mask_;
  std::size_t at_ = 0;
};

}  // namespace levada
