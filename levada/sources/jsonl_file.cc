#include "levada/sources/jsonl_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/sources/jsonl_cursor.h"

namespace levada {
namespace {

class JsonlFile final : public TokenFile {
 public:
  JsonlFile(std::shared_ptr<const File> file, const FileIdentity& identity, FileIndex index, std::uint64_t index_bytes,
            const TokenFileOptions& options)
      : file_(std::move(file)),
        identity_(identity),
        index_(std::move(index)),
        index_bytes_(index_bytes),
        text_field_(options.text_field),
        stride_(options.stride),
        phase_(options.phase) {}

  const std::string& path() const override { return file_->path(); }
  const FileContents& contents() const override { return index_.contents; }
  std::uint64_t index_bytes() const override { return index_bytes_; }
  void check() const override { expect_unchanged(*file_, identity_); }

  void read(std::int64_t position, std::int64_t end, TokenWriter& to, ReadStats& stats) override {
    const auto first = cut_at(position);
    const auto last = cut_at(end - 1);
    const auto begin_byte = first ? first->offset : 0;
    const auto end_byte = last ? last->offset : identity_.size;
    const Window window(*file_, begin_byte, last ? end_byte + 1 : end_byte, identity_.size, buffer_, stats);
    auto cursor = first ? JsonlCursor(*file_, text_field_, index_.skipped, window, *first)
                        : JsonlCursor(*file_, text_field_, index_.skipped, window);
    while (position < end) {
      const auto stop = std::min(next_cut(position), end);
      cursor.write(stop - position, to);
      position = stop;
      if (position < end) expect_place(cursor.locate(), *cut_at(position));
    }
    stats.bytes_consumed += end_byte - std::min(begin_byte, end_byte);
  }

 private:
  std::optional<TextPlace> cut_at(std::int64_t position) const {
    const auto since = position - phase_;
    if (since < 0 || since % stride_ != 0 || position >= index_.contents.tokens) return std::nullopt;
    return TextPlace::unpacked(index_.cuts[static_cast<std::size_t>(since / stride_)]);
  }

  std::int64_t next_cut(std::int64_t position) const {
    return position < phase_ ? phase_ : position + stride_ - (position - phase_) % stride_;
  }

  void expect_place(const TextPlace& found, const TextPlace& indexed) const {
    if (found == indexed) return;
    throw SourceError(
        fmt::format("{} is no longer what was indexed: a sample that ended at byte {} ends at byte {}; "
                    "start again with a file that stays as it is",
                    path(), indexed.offset, found.offset));
  }

  std::shared_ptr<const File> file_;
  FileIdentity identity_;
  FileIndex index_;
  std::uint64_t index_bytes_;
  std::string text_field_;
  std::int64_t stride_, phase_;
  std::vector<char> buffer_;
};

}  // namespace

std::unique_ptr<TokenFile> make_jsonl_file(std::shared_ptr<const File> file, const FileIdentity& identity,
                                           FileIndex index, std::uint64_t index_bytes,
                                           const TokenFileOptions& options) {
  return std::make_unique<JsonlFile>(std::move(file), identity, std::move(index), index_bytes, options);
}

}  // namespace levada
