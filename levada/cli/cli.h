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

/// The tokenizer that is asked for.
struct TokenizerChoice {
  std::string name;
  std::string chat_template = {};  ///< "own" or a file; empty: of texts, not of chats
  bool special_tokens = false;     ///< with those that the tokenizer's template puts around each text
};

/// What a program adds to the command.
struct Extensions {
  /// The program, with its first arguments, that is this command, for the ranks that it starts; empty: this process's.
  std::vector<std::string> self = {};
  std::string python = {};  ///< the interpreter of Python scripts; empty: python3 on PATH
  /// Returns null for a tokenizer that it does not know.
  std::function<std::shared_ptr<const Tokenizer>(const TokenizerChoice& choice)> open_tokenizer = {};
  std::string tokenizers = {};  ///< which ones those are, for messages
  std::vector<TextFormat> formats = {};
  RemoteFiles remote = {};
};

/// Runs the command and returns its exit status: 0 good, 1 failed, 2 bad usage, 128+N ended by signal N. Errors go to
/// standard error as one sentence. To be called from main(), before any thread is started.
int run(int argc, const char* const* argv, Extensions extensions = {});

}  // namespace levada::cli
