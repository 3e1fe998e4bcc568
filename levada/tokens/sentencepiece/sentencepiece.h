// SentencePiece tokenizers (T. Kudo, J. Richardson, 2018), through SentencePiece's own library.
#pragma once

#include <memory>
#include <string>

#include "levada/tokens/tokenizer.h"

namespace levada {

/// Opens a .model. Throws SourceError for a file that cannot be read or is not a model.
std::shared_ptr<const Tokenizer> open_sentencepiece(const std::string& path);

}  // namespace levada
