#include "levada/tokens/sentencepiece/sentencepiece.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/sources/file.h"

namespace levada {
namespace {

constexpr std::uint64_t max_model_bytes = std::uint64_t{1} << 30;

class SentencePiece final : public Tokenizer {
 public:
  explicit SentencePiece(const File& file) : name_(file.path()) {
    const auto size = file.identity().size;
    if (size > max_model_bytes) throw SourceError(fmt::format("{} is too large for a SentencePiece model", name_));
    std::string model(size, '\0');
    model.resize(read_fully(file, 0, model));
    if (!processor_.LoadFromSerializedProto(model).ok()) {
      throw SourceError(fmt::format("{} is not a SentencePiece model, or is damaged: name the .model of one", name_));
    }
    Digest digest;
    digest.update("sentencepiece " LEVADA_SENTENCEPIECE_VERSION " ");  // another version may encode differently
    digest.update(model);
    digest_ = digest.hex();
  }

  const std::string& name() const override { return name_; }
  const std::string& digest() const override { return digest_; }
  std::int64_t vocabulary_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int64_t> id_of(std::string_view token) const override {
    const int id = processor_.PieceToId({token.data(), token.size()});
    if (processor_.IdToPiece(id) != token) return std::nullopt;  // The id of unknown tokens.
    return id;
  }
  std::optional<std::int64_t> end_of_document() const override {
    const int id = processor_.eos_id();
    return id < 0 ? std::nullopt : std::optional<std::int64_t>(id);
  }

  void encode(const Texts& texts, TokenIds& tokens) const override {
    tokens.clear();
    std::vector<int> ids;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto text = texts[i];
      if (const auto status = processor_.Encode({text.data(), text.size()}, &ids); !status.ok()) {
        throw SourceError(fmt::format("{} cannot encode a text: {}", name_, status.ToString()));
      }
      tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
      tokens.ends.push_back(tokens.ids.size());
    }
  }

 private:
  std::string name_, digest_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::shared_ptr<const Tokenizer> open_sentencepiece(const std::string& path) {
  return std::make_shared<SentencePiece>(*open_file(path));
}

}  // namespace levada
