#include "levada/sources/jsonl_index.h"

#include <tuple>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/sources/json_string.h"
#include "levada/sources/jsonl_documents.h"
#include "levada/sources/jsonl_line.h"

namespace levada {
namespace {

/// Counts tokens and notes where the documents begin, if that is asked for, and the cuts fall.
class CutFinder {
 public:
  explicit CutFinder(const TokenFileOptions& options)
      : by_document_(options.by_document), stride_(options.stride), next_cut_(options.phase) {}

  /// A document whose raw text, `raw`, begins at `offset`. Throws BadLine, as if there had been no such document.
  void document(std::string_view raw, std::uint64_t offset) {
    const auto before = std::tuple(tokens_, next_cut_, cuts_.size());
    if (by_document_) next_cut_ = tokens_ + stride_;
    try {
      walk(raw, offset);
    } catch (const BadLine&) {
      tokens_ = std::get<0>(before);
      next_cut_ = std::get<1>(before);
      cuts_.resize(std::get<2>(before));
      throw;
    }
    if (!by_document_) return;
    documents_.begins.push_back(offset);
    documents_.tokens.push_back(static_cast<std::uint32_t>(tokens_ - std::get<0>(before)));  // A line is shorter.
  }

  std::int64_t tokens() const { return tokens_; }
  std::vector<std::uint64_t> take_cuts() { return std::move(cuts_); }
  DocumentTable take_documents() { return std::move(documents_); }

 private:
  void walk(std::string_view raw, std::uint64_t offset) {
    const auto pass = [&](std::size_t length) {
      raw.remove_prefix(length);
      offset += length;
    };
    while (!raw.empty()) {
      const auto stretch = count_stretch(raw, static_cast<std::size_t>(next_cut_ - tokens_));
      tokens_ += static_cast<std::int64_t>(stretch.decoded);
      pass(stretch.raw);
      if (raw.empty()) break;
      const auto piece = next_piece(raw);
      if (piece.kind == StringPiece::plain) token_run(offset, piece.raw, 1, 0);
      else if (piece.kind == StringPiece::escape) token_run(offset, piece.decoded_size, 0, 1);
      else throw BadLine(wrong_escape(raw));
      pass(piece.raw);
    }
    token_run(offset, 1, 0, 0);
  }

  /// `count` tokens, of which the k-th begins at `offset` + k * `offset_step`, k * `skip_step` bytes into an escape.
  void token_run(std::uint64_t offset, std::size_t count, std::uint64_t offset_step, unsigned skip_step) {
    const auto end = tokens_ + static_cast<std::int64_t>(count);
    for (; next_cut_ < end; next_cut_ += stride_) {
      const auto into = static_cast<std::uint64_t>(next_cut_ - tokens_);
      cuts_.push_back(TextPlace{offset + into * offset_step, static_cast<unsigned>(into) * skip_step}.packed());
    }
    tokens_ = end;
  }

  bool by_document_;
  std::int64_t stride_, next_cut_, tokens_ = 0;
  std::vector<std::uint64_t> cuts_;
  DocumentTable documents_;
};

void add_range(std::vector<ByteRange>& ranges, const Line& line) {
  if (!ranges.empty() && ranges.back().end == line.begin) ranges.back().end = line.end;
  else ranges.push_back({line.begin, line.end});
}

}  // namespace

FileIndex index_jsonl(const File& file, const TokenFileOptions& options, std::uint64_t line_limit) {
  FileIndex index;
  Digest digest;
  CutFinder cuts(options);
  IndexProgress progress{file.path(), 0, file.identity().size};
  const JsonlVisitor visitor = {
      .on_bytes =
          [&](std::string_view bytes) {
            digest.update(bytes);
            progress.bytes_done += bytes.size();
            if (options.progress) options.progress(progress);
          },
      .on_document = [&](std::string_view raw, std::uint64_t offset) { cuts.document(raw, offset); },
      .on_bad_line = [&](const Line& line) { add_range(index.skipped, line); }};
  const auto counts = visit_jsonl(file, options, visitor, line_limit);
  index.contents = {
      .tokens = cuts.tokens(), .documents = counts.documents, .bad_lines = counts.bad_lines, .digest = digest.hex()};
  index.cuts = cuts.take_cuts();
  index.documents = cuts.take_documents();
  return index;
}

}  // namespace levada
