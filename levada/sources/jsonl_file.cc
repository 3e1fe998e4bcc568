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
            std::unique_ptr<KeptIndex> kept, const TokenFileOptions& options)
      : file_(std::move(file)),
        identity_(identity),
        index_(std::move(index)),
        index_bytes_(index_bytes),
        kept_(std::move(kept)),
        text_field_(options.text_field),
        stride_(options.stride),
        phase_(options.phase) {}

  const std::string& path() const override { return file_->path(); }
  const FileContents& contents() const override { return index_.contents; }
  std::uint64_t index_bytes() const override { return index_bytes_; }
  void check() const override { expect_unchanged(*file_, identity_); }

  void read(std::int64_t position, std::int64_t end, TokenWriter& to, ReadState& state) const override try {
    const auto first = cut_at(position);
    const auto last = cut_at(end - 1);
    const auto begin_byte = first ? first->offset : 0;
    const auto end_byte = last ? last->offset : identity_.size;
    const Window window(*file_, begin_byte, last ? end_byte + 1 : end_byte, identity_.size, state.buffer, state.stats);
    auto cursor = first ? JsonlCursor(*file_, text_field_, index_.skipped, window, *first)
                        : JsonlCursor(*file_, text_field_, index_.skipped, window);
    while (position < end) {
      const auto stop = std::min(next_cut(position), end);
      cursor.write(stop - position, to);
      position = stop;
      if (position < end) expect_place(cursor.locate(), *cut_at(position));
    }
    state.stats.bytes_consumed += end_byte - std::min(begin_byte, end_byte);
  } catch (const StaleIndex&) {
    forget_index();
    throw;
  }

  std::int64_t document_tokens(std::int64_t document) const override {
    return index_.documents.tokens[static_cast<std::size_t>(document)];
  }

  void read_document(std::int64_t document, std::int64_t from, std::int64_t end, TokenWriter& to,
                     ReadState& state) const override try {
    const bool whole = end == document_tokens(document);
    const auto begin = place_in(document, from);
    // No token takes more than an escape of six bytes.
    const auto behind = whole ? std::min(begin_of(document + 1), begin.offset + 6 * static_cast<std::uint64_t>(end))
                              : place_in(document, end - 1).offset + 1;
    const Window window(*file_, begin.offset, behind, identity_.size, state.buffer, state.stats);
    JsonlCursor cursor(*file_, text_field_, index_.skipped, window, begin);
    cursor.write(end - 1 - from, to);
    if (!whole && !cursor.at_end()) expect_place(cursor.locate(), place_in(document, end - 1));
    state.stats.bytes_consumed += cursor.offset() - begin.offset;
    cursor.write(1, to);
    if (cursor.at_end() != whole || cursor.offset() > begin_of(document + 1)) {
      throw StaleIndex(
          fmt::format("{} is no longer what was indexed: the document at byte {} has another length; start again with "
                      "a file that stays as it is",
                      path(), begin_of(document)));
    }
  } catch (const StaleIndex&) {
    forget_index();
    throw;
  }

 private:
  std::uint64_t begin_of(std::int64_t document) const {
    const auto& begins = index_.documents.begins;
    return static_cast<std::size_t>(document) < begins.size() ? begins[static_cast<std::size_t>(document)]
                                                              : identity_.size;
  }

  /// Token `from` of a document, a multiple of the stride.
  TextPlace place_in(std::int64_t document, std::int64_t from) const {
    const auto begin = begin_of(document);
    if (from == 0) return {begin, 0};
    // The cuts of the documents before have smaller offsets, and this document's first is cut number 1.
    const auto first = std::ranges::lower_bound(index_.cuts, TextPlace{begin, 0}.packed());
    return TextPlace::unpacked(first[from / stride_ - 1]);
  }

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
    throw StaleIndex(
        fmt::format("{} is no longer what was indexed: a sample that ended at byte {} ends at byte {}; "
                    "start again with a file that stays as it is",
                    path(), indexed.offset, found.offset));
  }

  void forget_index() const {
    if (kept_) kept_->remove();
  }

  std::shared_ptr<const File> file_;
  FileIdentity identity_;
  FileIndex index_;
  std::uint64_t index_bytes_;
  std::unique_ptr<KeptIndex> kept_;  ///< null: nowhere
  std::string text_field_;
  std::int64_t stride_, phase_;
};

}  // namespace

std::unique_ptr<TokenFile> make_jsonl_file(std::shared_ptr<const File> file, const FileIdentity& identity,
                                           FileIndex index, std::uint64_t index_bytes, std::unique_ptr<KeptIndex> kept,
                                           const TokenFileOptions& options) {
  return std::make_unique<JsonlFile>(std::move(file), identity, std::move(index), index_bytes, std::move(kept),
                                     options);
}

}  // namespace levada
