#include "levada/cli/cli.h"
#include "levada/tokens/sentencepiece/sentencepiece.h"

int main(int argc, char** argv) {
  const auto open_tokenizer = [](const levada::cli::TokenizerChoice& choice) {
    const bool is_here = choice.name.ends_with(".model") && choice.chat_template.empty() && !choice.special_tokens;
    return is_here ? levada::open_sentencepiece(choice.name) : nullptr;
  };
  return levada::cli::run(argc, argv, {.open_tokenizer = open_tokenizer, .tokenizers = "a SentencePiece .model"});
}
