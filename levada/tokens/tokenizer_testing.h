// An instrumented tokenizer, and the tokens of a file, for tests.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "levada/sources/token_file.h"
#include "levada/tokens/tokenizer.h"

namespace levada {

/// Encodes bytes. Counts the texts, and calls `before_encode` first.
class HookedTokenizer final : public Tokenizer {
 public:
  explicit HookedTokenizer(std::function<void(const Texts&)> before_encode = {}, std::string digest = "hooked")
      : before_encode_(std::move(before_encode)), digest_(std::move(digest)) {}

  const std::string& name() const override { return digest_; }
  const std::string& digest() const override { return digest_; }
  std::int64_t vocabulary_size() const override { return bytes_->vocabulary_size(); }
  std::optional<std::int64_t> id_of(std::string_view token) const override { return bytes_->id_of(token); }
  std::optional<std::int64_t> end_of_document() const override { return bytes_->end_of_document(); }
  void encode(const Texts& texts, TokenIds& tokens) const override {
    if (before_encode_) before_encode_(texts);
    num_texts += texts.size();
    bytes_->encode(texts, tokens);
  }

  mutable std::atomic<std::size_t> num_texts = 0;

 private:
  std::function<void(const Texts&)> before_encode_;
  std::string digest_;
  std::shared_ptr<const Tokenizer> bytes_ = byte_tokenizer();
};

/// Returns all tokens of a data set that has at least two.
inline std::vector<std::int64_t> tokens_in(const std::string& path) {
  const TokenFile file(path, {});
  const auto count = static_cast<std::size_t>(file.contents().tokens);
  std::vector<std::int64_t> tokens(count - 1), labels(count - 1);
  TokenWriter to({tokens}, {labels});
  ReadState state;
  file.read(0, file.contents().tokens, to, state);
  tokens.push_back(labels.back());
  return tokens;
}

}  // namespace levada
