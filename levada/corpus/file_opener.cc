#include "levada/corpus/file_opener.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {

FileOpener::FileOpener(const CorpusOptions& options)
    : options_(options), storage_(options.io, options.open), cache_storage_(options.io, open_file) {}

std::vector<OpenedFile> FileOpener::open(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  std::ranges::copy_if(paths, std::back_inserter(texts), [&](const std::string& path) { return is_text_here(path); });
  const auto tokens = tokenize(texts);
  std::vector<OpenedFile> files;
  auto next = tokens.begin();
  for (const auto& path : paths) files.push_back(is_text_here(path) ? open_cached(*next++) : open_tokens(path));
  return files;
}

OpenedFile FileOpener::open_tokens(const std::string& path) const {
  if (is_token_file(path)) return {.tokens = std::make_unique<const TokenFile>(path, options_for(storage_))};
  static_cast<void>(storage_.open(path));  // That it is not there says more than its kind.
  std::string more;
  for (const auto& format : options_.formats) more += format.extension + ", ";
  throw InvalidArgument(fmt::format(
      "{} is of no kind that can be read: .jsonl (a document a line) and .txt (one document), also with "
      ".gz or .zst behind, {}and .bin with .idx (Megatron-LM's, by either name or what stands before it) can",
      printable(path), more));
}

OpenedFile FileOpener::open_cached(const CachedTokens& tokens) const {
  auto file = std::make_unique<const TokenFile>(tokens.prefix, options_for(cache_storage_));
  if (file->contents().digest != tokens.digest) {
    throw SourceError(
        fmt::format("{} is not what was written there: remove it, and the text is tokenized again", file->path()));
  }
  return {std::move(file), tokens.bad_lines, tokens.bytes_read};
}

std::vector<CachedTokens> FileOpener::tokenize(const std::vector<std::string>& texts) {
  if (texts.empty()) return {};
  end_of_document_ = choose_end_of_document(*options_.tokenizer, options_.end_of_document);
  if (!cache_) {
    cache_ = std::make_shared<TokenCache>(
        TokenCacheOptions{.dir = options_.cache_dir, .max_bytes = options_.cache_bytes, .warn = options_.io.warn});
  }
  return cache_->tokenize(texts, {.tokenizer = options_.tokenizer,
                                  .end_of_document = end_of_document_,
                                  .text = {.text_field = options_.text_field, .skip_bad = options_.skip_bad},
                                  .progress = options_.progress,
                                  .open = [this](const std::string& path) { return storage_.open(path); },
                                  .formats = options_.formats});
}

TokenFileOptions FileOpener::options_for(const Storage& storage) const {
  return {.by_document = options_.packing != Packing::cut,
          .progress = options_.progress,
          .open = [&storage](const std::string& path) { return storage.open(path); }};
}

}  // namespace levada
