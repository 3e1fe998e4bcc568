#include "levada/sources/jsonl_documents.h"

#include <fmt/format.h>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/sources/jsonl_line.h"

namespace levada {
namespace {

void expect_documents(const File& file, const JsonlCounts& counts) {
  if (counts.documents > 0) return;
  throw SourceError(
      counts.bad_lines > 0
          ? fmt::format("{} holds no documents: all of its {} lines are bad", file.path(), counts.bad_lines)
          : fmt::format("{} holds no documents: there is only white space in it", file.path()));
}

}  // namespace

JsonlCounts visit_jsonl(const File& file, const TokenFileOptions& options, const JsonlVisitor& visitor,
                        std::uint64_t line_limit) {
  const auto identity = file.identity();
  JsonlCounts counts;
  LineReader lines(file, line_limit, line_padding, visitor.on_bytes);
  JsonlChecker checker(options.text_field);
  while (auto line = lines.next()) {
    try {
      if (line->too_long) {
        throw BadLine(fmt::format("it is longer than {}, the most that a line may have", format_bytes(line_limit)));
      }
      if (is_blank(line->text)) continue;
      const auto raw = checker.text(line->text);
      visitor.on_document(raw, line->begin + static_cast<std::uint64_t>(raw.data() - line->text.data()));
      ++counts.documents;
    } catch (const BadLine& error) {
      if (!options.skip_bad) {
        throw SourceError(fmt::format("{}:{}: the line cannot be used: {}", file.path(), line->number, error.what()));
      }
      ++counts.bad_lines;
      if (line->too_long) lines.pass_over(*line);
      visitor.on_bad_line(*line);
    }
  }
  expect_unchanged(file, identity);
  expect_documents(file, counts);
  return counts;
}

}  // namespace levada
