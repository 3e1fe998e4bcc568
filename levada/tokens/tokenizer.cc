#include "levada/tokens/tokenizer.h"

#include <fmt/format.h>

#include <charconv>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  const std::string& name() const override { return name_; }
  const std::string& digest() const override { return name_; }
  std::int64_t vocabulary_size() const override { return end_token + 1; }
  std::optional<std::int64_t> id_of(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token.front());
  }
  std::optional<std::int64_t> end_of_document() const override { return end_token; }

  void encode(const Texts& texts, TokenIds& tokens) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(texts.bytes.data());
    tokens.ids.assign(bytes, bytes + texts.bytes.size());
    tokens.ends = texts.ends;
  }

 private:
  static constexpr std::int64_t end_token = 256;
  std::string name_ = "bytes";
};

std::optional<std::int64_t> number_in(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  return std::make_shared<ByteTokenizer>();
}

std::int64_t choose_end_of_document(const Tokenizer& tokenizer, const std::string& token) {
  const auto shown = printable(tokenizer.name());
  if (!token.empty()) {
    const auto number = number_in(token);
    const auto id = number ? number : tokenizer.id_of(token);
    if (id && *id >= 0 && *id < tokenizer.vocabulary_size()) return *id;
    throw InvalidArgument(
        fmt::format("{} has no token {} to end documents with: name one of its {} tokens, by its "
                    "number or its text",
                    shown, printable(token), tokenizer.vocabulary_size()));
  }
  if (const auto own = tokenizer.end_of_document()) return *own;
  for (const char* common : {"<|endoftext|>", "</s>", "<eod>"}) {
    if (const auto id = tokenizer.id_of(common)) return *id;
  }
  throw InvalidArgument(
      fmt::format("{} does not say which token ends a document: name it (--eod TOKEN, eod=\"TOKEN\")", shown));
}

}  // namespace levada
