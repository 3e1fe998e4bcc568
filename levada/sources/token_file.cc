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

}  // namespace

std::unique_ptr<TokenFile> open_token_file(const std::string& path, const TokenFileOptions& options) {
  const auto kind = data_kind(path);
  if (kind == DataKind::megatron) return open_megatron_file(path, options);
  std::shared_ptr<const File> file = options.open(path);
  if (!kind) refuse_kind(path);
  const auto identity = file->identity();
  if (identity.size == 0) throw SourceError(fmt::format("{} is empty", path));
  const auto key = key_of(path, *kind, identity, options);
  auto index = options.cache_dir.empty() ? std::nullopt : load_index(options.cache_dir, key);
  std::uint64_t index_bytes = 0;
  if (!index || !is_usable(*index, *kind, options)) {
    index = kind == DataKind::jsonl ? index_jsonl(*file, options) : index_text(*file, options);
    expect_unchanged(*file, identity);
    index_bytes = identity.size;
    if (!options.cache_dir.empty()) store_index(options.cache_dir, key, *index);
  }
  if (kind == DataKind::text) return make_text_file(std::move(file), identity, std::move(*index), index_bytes);
  return make_jsonl_file(std::move(file), identity, std::move(*index), index_bytes, options);
}

}  // namespace levada
