// The `levada` command as a library.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/sources/remote_files.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"

namespace levada::cli {

/// A requested tokenizer.
struct TokenizerChoice {
  std::string name;
  std::string chat_template = {};  ///< "own" or a file; empty if the data is text, not chats
  bool special_tokens = false;     ///< whether to add the tokens that the tokenizer's template puts around each text
};

/// Program-specific parts of the command.
struct Extensions {
  /// The program and its first arguments that start this command as a rank; empty for this process's program.
  std::vector<std::string> self = {};
  std::string python = {};  ///< the interpreter of Python scripts; empty: python3 on PATH
  /// Returns null if it does not know the tokenizer.
  std::function<std::shared_ptr<const Tokenizer>(const TokenizerChoice& choice)> open_tokenizer = {};
  std::string tokenizers = {};  ///< names of the tokenizers that open_tokenizer supports, for messages
  std::vector<TextFormat> formats = {};
  RemoteFiles remote = {};
};

/// Runs the command and returns its exit status: 0 for success, 1 for failure, 2 for bad usage, 128+N if signal N ended
/// it. Prints an error as one sentence on standard error. Must be called from main(), before any thread starts.
int run(int argc, const char* const* argv, Extensions extensions = {});

}  // namespace levada::cli
