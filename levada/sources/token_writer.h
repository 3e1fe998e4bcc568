// Where a source's tokens go: the rows `tokens` and `labels` of consecutive samples.
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

/// Takes a row of n + 1 tokens t and lays it out as tokens t[0..n) and labels t[1..n]. Borrows both, and the loss mask.
class TokenWriter {
 public:
  /// `labels` is as long as `tokens`, and as wide.
  TokenWriter(IdSpan tokens, IdSpan labels, std::span<float> loss_mask = {})
      : tokens_(tokens), labels_(labels), loss_mask_(loss_mask) {}

  /// Returns the number of tokens still to be written.
  std::size_t missing() const { return tokens_.size() + 1 - at_; }
  /// Returns the largest token that can be written.
  std::int64_t largest() const {
    return tokens_.is_narrow() ? std::numeric_limits<std::int32_t>::max() : std::numeric_limits<std::int64_t>::max();
  }

  /// `stored`: tokens as little-endian numbers of this width, no more than missing(). Returns whether all of them are
  /// ids: none is negative, if the numbers are signed, or above largest().
  template <typename Unsigned>
  bool write_stored(std::string_view stored, bool is_signed) {
    const auto all =
        tokens_.is_narrow() ? write_as<std::int32_t, Unsigned>(stored) : write_as<std::int64_t, Unsigned>(stored);
    const std::uint64_t most = std::numeric_limits<Unsigned>::max() >> (is_signed ? 1 : 0);
    return (all & ~std::min(most, static_cast<std::uint64_t>(largest()))) == 0;
  }

  /// The same of int32 numbers, of which one below zero is ~token: its label is masked with 0.
  void write_masked(std::string_view stored) {
    for (; !stored.empty(); stored.remove_prefix(sizeof(std::int32_t))) {
      const auto number = static_cast<std::int32_t>(load<std::uint32_t>(stored.data()));
      if (number < 0 && at_ > 0) loss_mask_[at_ - 1] = 0;
      write(number < 0 ? ~number : number);
    }
  }

  /// From 0 to largest().
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

  /// Returns the bits that any of the stored numbers has.
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

  /// Numbers that are both tokens and labels: converted once, in a loop that compilers make vectors of.
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
