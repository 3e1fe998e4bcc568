#include "levada/sources/text_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/sources/utf8.h"
#include "levada/sources/window.h"

namespace levada {
namespace {

constexpr std::size_t piece_bytes = std::size_t{256} << 10;

class TextFile final : public TokenFile {
 public:
  TextFile(std::shared_ptr<const File> file, const FileIdentity& identity, FileContents contents,
           std::uint64_t index_bytes)
      : file_(std::move(file)), identity_(identity), contents_(std::move(contents)), index_bytes_(index_bytes) {}

  const std::string& path() const override { return file_->path(); }
  const FileContents& contents() const override { return contents_; }
  std::uint64_t index_bytes() const override { return index_bytes_; }
  void check() const override { expect_unchanged(*file_, identity_); }

  void read(std::int64_t position, std::int64_t end, TokenWriter& to, ReadState& state) const override {
    const auto begin_byte = static_cast<std::uint64_t>(position);
    const auto end_byte = std::min(static_cast<std::uint64_t>(end), identity_.size);
    Window window(*file_, begin_byte, end_byte, identity_.size, state.buffer, state.stats);
    while (window.offset() < end_byte && window.more()) {
      to.write_bytes(window.here());
      window.advance(window.here().size());
    }
    if (end == contents_.tokens) to.write(end_of_document);
    // The last token is only a label.
    state.stats.bytes_consumed += static_cast<std::uint64_t>(end - 1 - position);
  }

  std::int64_t document_tokens(std::int64_t /*document*/) const override { return contents_.tokens; }
  void read_document(std::int64_t /*document*/, std::int64_t from, std::int64_t end, TokenWriter& to,
                     ReadState& state) const override {
    read(from, end, to, state);
  }

 private:
  std::shared_ptr<const File> file_;
  FileIdentity identity_;
  FileContents contents_;
  std::uint64_t index_bytes_;
};

}  // namespace

void visit_text(const File& file, const std::function<void(std::string_view)>& on_piece) {
  const auto identity = file.identity();
  std::vector<char> buffer(piece_bytes);
  std::size_t kept = 0;
  std::uint64_t offset = 0;  // of the buffer's front
  while (true) {
    const auto got = read_fully(file, offset + kept, std::span(buffer).subspan(kept));
    const std::string_view held(buffer.data(), kept + got);
    const auto whole = got > 0 ? held.substr(0, whole_characters(held)) : held;
    if (!is_utf8(whole)) {
      throw SourceError(fmt::format("{} is not UTF-8 at byte {}", file.path(), offset + first_bad_byte(whole)));
    }
    if (got == 0) break;
    on_piece(whole);
    offset += whole.size();
    kept = held.size() - whole.size();
    std::copy_n(whole.data() + whole.size(), kept, buffer.data());
  }
  expect_unchanged(file, identity);
}

FileIndex index_text(const File& file, const TokenFileOptions& options) {
  Digest digest;
  IndexProgress progress{file.path(), 0, file.identity().size};
  visit_text(file, [&](std::string_view piece) {
    digest.update(piece);
    progress.bytes_done += piece.size();
    if (options.progress) options.progress(progress);
  });
  const auto tokens = static_cast<std::int64_t>(progress.bytes_in_all) + 1;
  return {.contents = {.tokens = tokens, .documents = 1, .digest = digest.hex()},
          .cuts = {},
          .documents = {},
          .skipped = {}};
}

std::unique_ptr<TokenFile> make_text_file(std::shared_ptr<const File> file, const FileIdentity& identity,
                                          FileIndex index, std::uint64_t index_bytes) {
  return std::make_unique<TextFile>(std::move(file), identity, std::move(index.contents), index_bytes);
}

}  // namespace levada
