// Where a source's tokens go: the rows `tokens` and `labels` of consecutive samples.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

namespace levada {

/// The built-in tokenizer: a byte of UTF-8 is a token, and one more ends each document.
inline constexpr std::int64_t end_of_document = 256;
inline constexpr std::int64_t byte_vocabulary = 257;

/// Takes a row of n + 1 tokens t and lays it out as tokens t[0..n) and labels t[1..n]. Borrows both.
class TokenWriter {
 public:
  /// `labels` is as long as `tokens`.
  TokenWriter(std::span<std::int64_t> tokens, std::span<std::int64_t> labels) : tokens_(tokens), labels_(labels) {}

  /// Tokens still to come.
  std::size_t missing() const { return tokens_.size() + 1 - at_; }

  /// Each byte is a token; no more than missing().
  void write_bytes(std::string_view bytes) {
    const auto size = bytes.size();
    const auto* from = reinterpret_cast<const unsigned char*>(bytes.data());
    const bool first = at_ == 0 && size > 0;
    std::copy_n(from, std::min(size, tokens_.size() - at_), tokens_.data() + at_);
    std::copy_n(from + (first ? 1 : 0), size - (first ? 1 : 0), labels_.data() + at_ - (first ? 0 : 1));
    at_ += size;
  }

  void write(std::int64_t token) {
    if (at_ < tokens_.size()) tokens_[at_] = token;
    if (at_ > 0) labels_[at_ - 1] = token;
    ++at_;
  }

 private:
  std::span<std::int64_t> tokens_, labels_;
  std::size_t at_ = 0;
};

}  // namespace levada
