#include "levada/cli/text_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/cli/command.h"
#include "levada/cli/error_reporter.h"

namespace levada::cli {

void add_text_options(CLI::App& command, TextArguments& arguments) {
  command.option_defaults()->group("Text");
  add_option(command, "--tokenizer", arguments.tokenizer, "NAME", "Tokenizer of text: a file, or bytes");
  command.add_flag("--special-tokens", arguments.special_tokens,
                   "Add the special tokens of the tokenizer's template around each document");
  command
      .add_option("--eod", arguments.end_of_document, "End-of-document token, by number or text [the tokenizer's own]")
      ->type_name("TOKEN");
  command.add_option("--text-field", arguments.options.text_field, "Field of a .jsonl line that holds the text [text]")
      ->type_name("NAME");
  command.add_flag("--skip-bad", arguments.options.skip_bad, "Skip and count unusable .jsonl lines");
}

void add_chat_template(CLI::App& command, std::string& chat_template) {
  command
      .add_option("--chat-template", chat_template,
                  "Template for chats: own (the tokenizer's) or a file; --text-field is then messages by default")
      ->type_name("NAME");
}

std::shared_ptr<const Tokenizer> open_tokenizer(const TokenizerChoice& choice, const Extensions& extensions) {
  if (choice.name.empty()) {
    if (choice.chat_template.empty() && !choice.special_tokens) return nullptr;
    throw InvalidArgument(
        fmt::format("{} requires --tokenizer", choice.special_tokens ? "--special-tokens" : "--chat-template"));
  }
  if (choice.name == "bytes" && choice.chat_template.empty() && !choice.special_tokens) return byte_tokenizer();
  if (extensions.open_tokenizer) {
    if (auto tokenizer = extensions.open_tokenizer(choice)) return tokenizer;
  }
  if (!choice.chat_template.empty()) {
    throw InvalidArgument(
        fmt::format("--chat-template requires a transformers tokenizer and the levada command of the Python package; "
                    "--tokenizer is {}",
                    printable(choice.name)));
  }
  if (choice.special_tokens) {
    throw InvalidArgument(fmt::format(
        "--special-tokens requires a tokenizer.json and the levada command of the Python package; --tokenizer is {}",
        printable(choice.name)));
  }
  throw InvalidArgument(
      fmt::format("--tokenizer is {}; it must be bytes{}{}", printable(choice.name),
                  extensions.tokenizers.empty() ? "" : " or " + extensions.tokenizers,
                  choice.name.ends_with(".json") ? "; the Python package reads a tokenizer.json" : ""));
}

std::shared_ptr<const Tokenizer> open_named_tokenizer(const TokenizerChoice& choice, const Extensions& extensions) {
  if (auto tokenizer = open_tokenizer(choice, extensions)) return tokenizer;
  throw InvalidArgument(
      "text needs a tokenizer: pass the model's with --tokenizer, or --tokenizer bytes to make each byte a token");
}

std::function<void(const PrepareProgress&)> shown_by(report::ProgressLine& line) {
  return [&line](const PrepareProgress& progress) {
    if (!line.is_due()) return;
    line.update(progress.bytes_done, progress.bytes_total,
                fmt::format("{} of {}", format_bytes(progress.bytes_done), progress.path));
  };
}

Storage open_storage(const Extensions& extensions) {
  return {{.warn = print_error}, open_file, extensions.remote};
}

void add_cache_options(CLI::App& command, CacheArguments& arguments) {
  command.option_defaults()->group("Text");
  command.add_option("--cache-dir", arguments.dir, "Folder of cached tokens [~/.cache/levada]")->type_name("DIR");
  command.add_option("--cache-size", arguments.size, "Maximum size of the cache: 200GB [half of the file system]")
      ->type_name("SIZE");
}

CorpusOptions corpus_options_of(const TextArguments& text, const std::string& chat_template,
                                const CacheArguments& cache, const Extensions& extensions) {
  CorpusOptions options;
  options.tokenizer = open_tokenizer({text.tokenizer, chat_template, text.special_tokens}, extensions);
  options.end_of_document = text.end_of_document;
  options.text_field = text.options.text_field;
  options.skip_bad = text.options.skip_bad;
  options.formats = extensions.formats;
  options.remote = extensions.remote;
  options.cache_dir = cache.dir;
  options.cache_bytes = parse_bytes("--cache-size", cache.size);
  options.io.warn = [](const std::string& warning) { print_error(warning); };
  return options;
}

std::optional<std::uint64_t> parse_bytes(std::string_view option, const std::string& text) {
  if (text.empty()) return std::nullopt;
  constexpr std::pair<std::string_view, double> units[] = {
      {"", 1},      {"B", 1},      {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& [name, factor] : units) {
    if (error == std::errc() && unit == name && number >= 0 && number * factor < 0x1p62) {
      return static_cast<std::uint64_t>(number * factor);
    }
  }
  throw InvalidArgument(
      fmt::format("{} is {}; it must be a number of bytes, such as 200GB or 512MiB", option, printable(text)));
}

}  // namespace levada::cli
