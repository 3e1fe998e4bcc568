#include "levada/sources/token_file.h"

#include <fmt/format.h>

#include <filesystem>

#include "levada/base/error.h"
#include "levada/sources/data_kind.h"
#include "levada/sources/index_cache.h"
#include "levada/sources/jsonl_file.h"
#include "levada/sources/jsonl_index.h"
#include "levada/sources/megatron_file.h"
#include "levada/sources/text_file.h"

namespace levada {
namespace {

IndexKey key_of(const std::string& path, DataKind kind, const FileIdentity& identity, const TokenFileOptions& options) {
  std::error_code error;
  const auto real_path = std::filesystem::canonical(path, error);
  IndexKey key{
      .kind = "text 1", .real_path = error ? path : real_path.string(), .identity = identity, .text_field = {}};
  // A text's index is the same however it is cut.
  if (kind == DataKind::text) return key;
  key.kind = options.by_document ? "jsonl documents 1" : "jsonl bytes 1";
  key.text_field = options.text_field;
  key.skip_bad = options.skip_bad;
  key.stride = options.stride;
  key.phase = options.phase;
  return key;
}

/// How many cuts there are to be in a .jsonl; empty if the index does not agree with itself.
std::optional<std::int64_t> cuts_in(const FileIndex& index, const TokenFileOptions& options) {
  if (!options.by_document) return count_cuts(index.contents.tokens, options.stride, options.phase);
  const auto& documents = index.documents;
  if (static_cast<std::int64_t>(documents.tokens.size()) != index.contents.documents) return std::nullopt;
  std::int64_t cuts = 0;
  for (const auto tokens : documents.tokens) cuts += count_document_cuts(tokens, options.stride);
  return cuts;
}

bool is_usable(const FileIndex& index, DataKind kind, const TokenFileOptions& options) {
  return kind == DataKind::text || cuts_in(index, options) == static_cast<std::int64_t>(index.cuts.size());
}

struct MadeIndex {
  FileIndex index;
  std::uint64_t bytes_read = 0;
};

MadeIndex make_index(const File& file, DataKind kind, const FileIdentity& identity, const TokenFileOptions& options) {
  auto index = kind == DataKind::jsonl ? index_jsonl(file, options) : index_text(file, options);
  expect_unchanged(file, identity);
  return {std::move(index), identity.size};
}

/// The index kept from an earlier run, made by another process meanwhile, or made here and then kept.
MadeIndex find_index(const File& file, DataKind kind, const FileIdentity& identity, KeptIndex& kept,
                     const TokenFileOptions& options) {
  const auto usable = [&](const std::optional<FileIndex>& index) { return index && is_usable(*index, kind, options); };
  const auto warn = [&](const std::string& warning) {
    if (options.warn) options.warn(warning);
  };
  const auto warn_of = [&](const Error& error) {
    warn(fmt::format("{}; without an index that is kept, every run reads all of {} first", error.what(), file.path()));
  };
  auto index = kept.load();
  if (usable(index)) return {*std::move(index)};
  bool reserved = false;
  try {
    index = kept.load_or_reserve(
        [&] { warn(fmt::format("another process is indexing {}: waiting for its index", file.path())); });
    if (usable(index)) return {*std::move(index)};
    reserved = !index;
  } catch (const SourceError& error) {
    warn_of(error);
  }
  auto made = make_index(file, kind, identity, options);
  try {
    if (reserved) kept.store(made.index);
  } catch (const SourceError& error) {
    warn_of(error);
  }
  return made;
}

}  // namespace

std::unique_ptr<TokenFile> open_token_file(const std::string& path, const TokenFileOptions& options) {
  const auto kind = data_kind(path);
  if (kind == DataKind::megatron) return open_megatron_file(path, options);
  std::shared_ptr<const File> file = options.open(path);
  if (!kind) refuse_kind(path);
  const auto identity = file->identity();
  if (identity.size == 0) throw SourceError(fmt::format("{} is empty", file->path()));
  std::unique_ptr<KeptIndex> kept;
  if (!options.cache_dir.empty()) {
    kept = std::make_unique<KeptIndex>(options.cache_dir, key_of(path, *kind, identity, options));
  }
  auto made = kept ? find_index(*file, *kind, identity, *kept, options) : make_index(*file, *kind, identity, options);
  if (kind == DataKind::text) {
    return make_text_file(std::move(file), identity, std::move(made.index), made.bytes_read);
  }
  return make_jsonl_file(std::move(file), identity, std::move(made.index), made.bytes_read, std::move(kept), options);
}

}  // namespace levada
