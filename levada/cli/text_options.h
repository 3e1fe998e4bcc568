// The options of the subcommands that read text.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "levada/cli/cli.h"
#include "levada/corpus/corpus_options.h"
#include "levada/report/progress.h"
#include "levada/sources/storage.h"
#include "levada/sources/token_file.h"

namespace levada::cli {

struct TextArguments {
  std::string tokenizer;
  bool special_tokens = false;  ///< tokens that the tokenizer's template puts around each document
  std::string end_of_document;  ///< a token; empty for the tokenizer's default
  TextOptions options = {};
};

void add_text_options(CLI::App& command, TextArguments& arguments);
/// Adds --chat-template.
void add_chat_template(CLI::App& command, std::string& chat_template);

/// Returns null if `choice` names no tokenizer. Throws InvalidArgument for an unknown name, SourceError for a file that
/// cannot be read or is not a tokenizer.
std::shared_ptr<const Tokenizer> open_tokenizer(const TokenizerChoice& choice, const Extensions& extensions);
/// As open_tokenizer(), but throws InvalidArgument if none is named.
std::shared_ptr<const Tokenizer> open_named_tokenizer(const TokenizerChoice& choice, const Extensions& extensions);

/// Returns a function that shows the progress of reading and tokenizing on `line`, which must outlive it.
std::function<void(const PrepareProgress&)> shown_by(report::ProgressLine& line);

/// Returns the storage that the command reads without a corpus.
Storage open_storage(const Extensions& extensions);

struct CacheArguments {
  std::string dir;   ///< empty for the user's default
  std::string size;  ///< "200GB"; empty for half of the file system
};

void add_cache_options(CLI::App& command, CacheArguments& arguments);

/// Returns a corpus's options for texts, with their tokenizer and cache; warnings go to standard error. Throws as
/// open_tokenizer() and parse_bytes() do.
CorpusOptions corpus_options_of(const TextArguments& text, const std::string& chat_template,
                                const CacheArguments& cache, const Extensions& extensions);

/// Parses "200GB", "500MiB" or "4096" into bytes; returns nothing for an empty text. Throws InvalidArgument that names
/// the option.
std::optional<std::uint64_t> parse_bytes(std::string_view option, const std::string& text);

}  // namespace levada::cli
