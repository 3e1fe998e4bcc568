#include "levada/sources/document_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "levada/base/error.h"
#include "levada/sources/data_kind.h"
#include "levada/sources/json_string.h"
#include "levada/sources/jsonl_documents.h"
#include "levada/sources/jsonl_line.h"
#include "levada/sources/text_file.h"

namespace levada {
namespace {

/// Decodes the inside of a JSON string into memory that is kept from text to text.
class TextDecoder {
 public:
  /// Valid until the next. Throws BadLine for a wrong escape.
  std::string_view decode(std::string_view raw) {
    // No escape is shorter than what it stands for.
    if (text_.size() < raw.size() + stretch_padding) text_.resize(2 * raw.size() + stretch_padding);
    auto* to = text_.data();
    while (!raw.empty()) {
      const auto stretch = decode_stretch(raw, to, raw.size());
      raw.remove_prefix(stretch.raw);
      to += stretch.decoded;
      if (raw.empty()) break;
      const auto piece = next_piece(raw);
      if (piece.kind != StringPiece::escape) throw BadLine(wrong_escape(raw));
      to = std::copy_n(piece.decoded.data(), piece.decoded_size, to);
      raw.remove_prefix(piece.raw);
    }
    return {text_.data(), static_cast<std::size_t>(to - text_.data())};
  }

 private:
  std::string text_;
};

DocumentCounts read_jsonl(const File& file, const TokenFileOptions& options, const DocumentVisitor& visitor) {
  TextDecoder decoder;
  IndexProgress progress{file.path(), 0, file.identity().size};
  const auto counts = visit_jsonl(file, options,
                                  {.on_bytes =
                                       [&](std::string_view bytes) {
                                         progress.bytes_done += bytes.size();
                                         if (options.progress) options.progress(progress);
                                       },
                                   .on_document =
                                       [&](std::string_view raw, std::uint64_t /*offset*/) {
                                         visitor.on_text(decoder.decode(raw));
                                         visitor.on_end();
                                       },
                                   .on_bad_line = [](const Line&) {}});
  return {counts.documents, counts.bad_lines};
}

}  // namespace

DocumentCounts read_documents(const File& file, const TokenFileOptions& options, const DocumentVisitor& visitor) {
  if (file.identity().size == 0) throw SourceError(fmt::format("{} is empty", file.path()));
  if (data_kind(file.path()) == DataKind::jsonl) return read_jsonl(file, options, visitor);
  IndexProgress progress{file.path(), 0, file.identity().size};
  visit_text(file, [&](std::string_view piece) {
    visitor.on_text(piece);
    progress.bytes_done += piece.size();
    if (options.progress) options.progress(progress);
  });
  visitor.on_end();
  return {.documents = 1};
}

}  // namespace levada
