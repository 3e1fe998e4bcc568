#include "levada/tokens/cache_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "levada/base/error.h"
#include "levada/sources/sampled_digest.h"

namespace levada {
namespace {

/// Changes with the files of an entry, and with how text becomes tokens.
constexpr std::string_view format_version = "2";

std::string digest_of(std::initializer_list<std::string_view> parts) {
  Digest digest;
  for (const auto part : parts) {
    digest.update(fmt::format("{}:", part.size()));
    digest.update(part);
  }
  return digest.hex();
}

/// Returns ".jsonl.gz", for example: it determines how bytes are read as documents.
std::string kind_of(const std::string& path) {
  const std::filesystem::path name(path);
  auto kind = name.extension().string();
  if (kind == ".gz" || kind == ".zst") kind = name.stem().extension().string() + kind;
  std::ranges::transform(kind, kind.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return kind;
}

}  // namespace

CacheKey CacheKey::of(const File& file, const TokenizeTexts& how) {
  const auto identity = file.identity();
  if (identity.size == 0) throw SourceError(fmt::format("{} is empty: leave it out", file.path()));
  const bool has_tag = !identity.tag.empty();
  const bool has_time = identity.modified_ns != 0 || identity.changed_ns != 0;
  // 0 means a tag, and the start of 1970 is the time of files in some images of systems.
  const auto time = has_time ? identity.modified_ns + (identity.modified_ns == 0 ? 1 : 0) : unknown_time;
  const auto content = has_tag ? identity.tag : sampled_digest(file, identity.size);
  return {.text = digest_of({format_version, kind_of(file.path()), std::to_string(identity.size), content,
                             how.text.field(), std::to_string(int{how.text.skip_bad}), how.tokenizer->digest(),
                             std::to_string(how.end_of_document)}),
          .modified_ns = has_tag ? 0 : time,
          .bytes = identity.size};
}

std::string CacheKey::with_content(const std::string& content_digest) const {
  return digest_of({text, content_digest});
}

DigestedFile::DigestedFile(std::unique_ptr<const File> file) : file_(std::move(file)) {}

std::size_t DigestedFile::read(std::uint64_t offset, std::span<char> into) const {
  const auto got = file_->read(offset, into);
  const std::lock_guard lock(mutex_);
  if (offset > digested_ || offset + got <= digested_) return got;
  const auto known = static_cast<std::size_t>(digested_ - offset);
  digest_.update(std::string_view(into.data(), got).substr(known));
  digested_ = offset + got;
  return got;
}

std::string DigestedFile::digest(const std::function<void()>& between_reads) const {
  std::vector<char> piece(std::size_t{1} << 20);
  const auto digested = [&] {
    const std::lock_guard lock(mutex_);
    return digested_;
  };
  while (read(digested(), piece) > 0) between_reads();
  const std::lock_guard lock(mutex_);
  return digest_.hex();
}

}  // namespace levada
