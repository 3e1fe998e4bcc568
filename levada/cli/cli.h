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

/// What a program adds to the command.
struct Extensions {
  /// The program, with its first arguments, that is this command, for the ranks that it starts; empty: this process's.
  std::vector<std::string> self = {};
  /// Opens a tokenizer by name, that of chats where a template is named; returns null for a name that it does not know.
  std::function<std::shared_ptr<const Tokenizer>(const std::string& name, const std::string& chat_template)>
      open_tokenizer = {};
  std::string tokenizers = {};  ///< which ones those are, for messages
  std::vector<TextFormat> formats = {};
  RemoteFiles remote = {};
};

/// Runs the command and returns its exit status: 0 good, 1 failed, 2 bad usage, 128+N ended by signal N. Errors go to
/// standard error as one sentence. To be called from main(), before any thread is started.
int run(int argc, const char* const* argv, Extensions extensions = {});

}  // namespace levada::cli
