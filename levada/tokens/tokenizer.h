// Turns text into token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levada {

/// Concatenated texts.
struct Texts {
  std::string bytes;              ///< UTF-8
  std::vector<std::size_t> ends;  ///< the end of each text in `bytes`

  std::size_t size() const { return ends.size(); }
  std::string_view operator[](std::size_t i) const {
    const auto begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(bytes).substr(begin, ends[i] - begin);
  }
  void add(std::string_view text) {
    bytes += text;
    ends.push_back(bytes.size());
  }
  void clear() {
    bytes.clear();
    ends.clear();
  }
};

/// The concatenated tokens of several texts.
struct TokenIds {
  std::vector<std::int32_t> ids;
  std::vector<std::size_t> ends;  ///< the end of each text in `ids`

  void clear() {
    ids.clear();
    ends.clear();
  }
};

/// Encodes texts as token ids. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns a name for messages: "bytes", or the name of the file that it was read from.
  virtual const std::string& name() const = 0;
  /// Returns a digest of the content, not of the names: equal for tokenizers that encode identically.
  virtual const std::string& digest() const = 0;
  /// Returns an upper bound: every id is below it.
  virtual std::int64_t vocabulary_size() const = 0;
  /// Returns the id of a token of the vocabulary, by its text, or nothing if it has none.
  virtual std::optional<std::int64_t> id_of(std::string_view token) const = 0;
  /// Returns the tokenizer's own end-of-document token, or nothing if it defines none. Throws InvalidArgument if it
  /// defines one that is not in its vocabulary.
  virtual std::optional<std::int64_t> end_of_document() const = 0;

  /// Returns whether it encodes chats: texts are JSON lists of messages, no tokens are added, and an id below zero is
  /// ~id of a token that is not to be learned.
  virtual bool is_chat() const { return false; }

  /// Replaces `tokens` with the tokens of the texts, without tokens that mark a beginning or an end. Throws
  /// SourceError.
  virtual void encode(const Texts& texts, TokenIds& tokens) const = 0;
};

/// Returns a tokenizer that maps each byte of UTF-8 to a token; 256 ends a document.
std::shared_ptr<const Tokenizer> byte_tokenizer();

/// Returns the id of the token that ends documents: `token` unless it is empty, by number or else by text ("2" is
/// number 2, even if a token has that text); else the tokenizer's own; else the first of <|endoftext|>, </s> and <eod>
/// in the vocabulary. Otherwise throws InvalidArgument, which asks for one.
std::int64_t choose_end_of_document(const Tokenizer& tokenizer, const std::string& token);

}  // namespace levada
