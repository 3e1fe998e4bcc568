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
    if (!bytes.empty() && at_ == 0) {
      write(static_cast<unsigned char>(bytes.front()));
      bytes.remove_prefix(1);
    }
    const auto inner = std::min(bytes.size(), tokens_.size() - at_);
    if (inner > 0) write_inner(reinterpret_cast<const unsigned char*>(bytes.data()), inner);
    if (inner < bytes.size()) write(static_cast<unsigned char>(bytes.back()));
  }

  void write(std::int64_t token) {
    if (at_ < tokens_.size()) tokens_[at_] = token;
    if (at_ > 0) labels_[at_ - 1] = token;
    ++at_;
  }

 private:
  /// Bytes that are both tokens and labels: widened once, in a loop that compilers make vectors of.
  void write_inner(const unsigned char* __restrict from, std::size_t size) {
    auto* __restrict tokens = tokens_.data() + at_;
    auto* __restrict labels = labels_.data() + at_ - 1;
    for (std::size_t i = 0; i < size; ++i) tokens[i] = labels[i] = from[i];
    at_ += size;
  }

  std::span<std::int64_t> tokens_, labels_;
  std::size_t at_ = 0;
};

}  // namespace levada
