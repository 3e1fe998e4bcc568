#include "levada/corpus/file_opener.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/corpus/split.h"
#include "levada/corpus/thread_pool.h"
#include "levada/tokens/bad_texts.h"

namespace levada {

namespace {

/// Returns options that cache token files on disk, since they are read randomly and again in each epoch. Texts are read
/// once, sequentially.
BlockCacheOptions blocks_of(const CorpusOptions& options) {
  BlockCacheOptions blocks{.dir = options.cache_dir.empty() ? default_cache_dir() : options.cache_dir};
  if (!blocks.dir.empty()) blocks.max_bytes = options.cache_bytes.value_or(std::uint64_t{16} << 30);
  return blocks;
}

}  // namespace

CorpusMix sources_of(std::vector<std::string> paths, const CorpusOptions& options) {
  if (paths.empty()) throw InvalidArgument("a corpus needs a file: name a .jsonl or .txt");
  const auto mix_file = std::ranges::find_if(paths, is_mix_file);
  if (mix_file == paths.end()) return {.sources = {{.paths = std::move(paths)}}};
  if (paths.size() > 1) {
    throw InvalidArgument(fmt::format("{} is a mix and must be the only path: name the other files in it", *mix_file));
  }
  const Storage storage(options.io, options.open, options.remote);
  return read_mix_file(*mix_file, [&](const std::string& path) { return storage.open(path); });
}

FileOpener::FileOpener(const CorpusOptions& options, std::shared_ptr<MemoryClaims> memory)
    : options_(options),
      memory_(std::move(memory)),
      known_indexes_(std::make_shared<const KnownIndexes>(token_cache_folder(options.cache_dir))),
      token_storage_(options.io, options.open, options.remote, blocks_of(options)),
      text_storage_(options.io, options.open, options.remote),
      cache_storage_(options.io, [this](const std::string& path) { return cache_->open(path); }) {}

FoundFiles FileOpener::expand(const std::vector<std::string>& names) {
  return expand_paths(names, options_.formats, token_cache_folder(options_.cache_dir),
                      [this](const std::string& url) { return text_storage_.list(url); });
}

std::vector<OpenedFile> FileOpener::open(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  std::ranges::copy_if(paths, std::back_inserter(texts), [&](const std::string& path) { return is_text_here(path); });
  const auto tokens = tokenize(texts);
  std::vector<const CachedTokens*> cached;
  auto next = tokens.begin();
  for (const auto& path : paths) cached.push_back(is_text_here(path) ? &*next++ : nullptr);
  std::vector<OpenedFile> files(paths.size());
  constexpr int remote_threads = 16;  // they mostly wait
  const int local_threads = std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
  ThreadPool(std::ranges::any_of(paths, is_url) ? remote_threads : local_threads, "opening files")
      .run(paths.size(), [&](std::size_t i, std::size_t) {
        files[i] = cached[i] != nullptr ? open_or_repair(paths[i], *cached[i]) : open_tokens(paths[i]);
      });
  BadTexts bad;
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].path = paths[i];
    if (!files[i].tokens) continue;
    const auto left_out = files[i].bad_lines.count;
    const auto lines = left_out + files[i].tokens->contents().stored_documents;
    if (static_cast<double>(left_out) <= options_.max_bad * static_cast<double>(lines)) continue;
    bad.add(i,
            fmt::format("{}: {} of {} lines cannot be used, but at most {} of a text's lines may be skipped (max_bad=, "
                        "--max-bad)",
                        printable(paths[i]), left_out, lines, options_.max_bad));
  }
  bad.throw_if_any(files.size());
  return files;
}

OpenedFile FileOpener::open_tokens(const std::string& path) const {
  expect_tokens(path);
  auto options = options_for(token_storage_);
  if (options_.tokenizer) options.vocabulary = options_.tokenizer->vocabulary_size();
  return {.tokens = std::make_unique<const TokenFile>(path, options)};
}

void FileOpener::expect_tokens(const std::string& path) const {
  const auto open = options_for(token_storage_).open;
  if (is_token_file(path, open)) return;
  static_cast<void>(open(path));  // a missing file is a clearer error than an unknown kind
  fail_unknown_kind(path, options_.formats);
}

OpenedFile FileOpener::open_or_repair(const std::string& path, const CachedTokens& tokens) try {
  return open_cached(tokens);
} catch (const SourceError& error) {
  std::unique_lock lock(mutex_);
  if (cache_->folder().evict_damaged(tokens.prefix) && options_.io.warn) {
    options_.io.warn(fmt::format("{}: tokenizing {} again", error.what(), printable(path)));
  }
  const auto again = tokenize({path}).front();
  lock.unlock();
  return open_cached(again);
}

OpenedFile FileOpener::open_cached(const CachedTokens& tokens) const {
  if (tokens.prefix.empty()) return {.bad_lines = tokens.bad_lines};
  auto options = options_for(cache_storage_);
  options.masks_loss = options_.tokenizer->is_chat();
  auto file = std::make_unique<const TokenFile>(tokens.prefix, options);
  if (file->contents().digest != tokens.digest) {
    throw SourceError(fmt::format("{} is not what was written there", file->path()));
  }
  return {.tokens = std::move(file), .bad_lines = tokens.bad_lines, .text_bytes = tokens.bytes_read};
}

std::vector<CachedTokens> FileOpener::tokenize(const std::vector<std::string>& texts) {
  if (texts.empty()) return {};
  if (!options_.tokenizer) {
    throw InvalidArgument(
        fmt::format("{} is text, and no tokenizer is named: pass the model's (tokenizer=, --tokenizer), or bytes to "
                    "make each byte a token",
                    printable(shown_url(texts.front()))));
  }
  const bool chats = options_.tokenizer->is_chat();
  if (!chats) end_of_document_ = choose_end_of_document(*options_.tokenizer, options_.end_of_document);
  if (!cache_) {
    cache_ = std::make_shared<TokenCache>(
        TokenCacheOptions{.dir = options_.cache_dir, .max_bytes = options_.cache_bytes, .warn = options_.io.warn});
  }
  return cache_->tokenize(texts,
                          {.tokenizer = options_.tokenizer,
                           .end_of_document = end_of_document_,
                           .text = {.text_field = options_.text_field, .skip_bad = options_.skip_bad, .chats = chats},
                           .progress = options_.progress,
                           .open = [this](const std::string& path) { return text_storage_.open(path); },
                           .formats = options_.formats});
}

TokenFileOptions FileOpener::options_for(const Storage& storage) const {
  return {.documents = part_of_split(options_.split, options_.part),
          .progress =
              [this](const PrepareProgress& progress) {
                const std::lock_guard lock(mutex_);
                if (options_.progress) options_.progress(progress);
              },
          .known_indexes = known_indexes_,
          .memory = memory_,
          .open = [&storage](const std::string& path) { return storage.open(path); }};
}

}  // namespace levada
