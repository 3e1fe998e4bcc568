#include "levada/cli/cli.h"
#include "levada/tokens/sentencepiece/sentencepiece.h"

int main(int argc, char** argv) {
  const auto open_tokenizer = [](const std::string& name, const std::string& chat_template) {
    return name.ends_with(".model") && chat_template.empty() ? levada::open_sentencepiece(name) : nullptr;
  };
  return levada::cli::run(argc, argv, {.open_tokenizer = open_tokenizer, .tokenizers = "a SentencePiece .model"});
}
