#include "levada/sources/jsonl_cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/sources/json_string.h"
#include "levada/sources/jsonl_line.h"

namespace levada {
namespace {

// Bytes decoded before they become tokens: in long rows that is done at the speed of memory.
constexpr std::size_t stretch_bytes = 4096;

}  // namespace

void JsonlCursor::fail(std::string_view what) const {
  throw StaleIndex(
      fmt::format("{} is no longer what was indexed: byte {} {}; start again with a file that stays as "
                  "it is",
                  file_.path(), window_.offset(), what));
}

void JsonlCursor::need() {
  if (!window_.more()) fail("is the end, where a document was");
}

char JsonlCursor::peek() {
  while (window_.here().empty()) need();
  return window_.here().front();
}

void JsonlCursor::expect(char wanted) {
  if (peek() != wanted) fail(fmt::format("is not '{}'", printable(std::string_view(&wanted, 1))));
  window_.advance(1);
}

TextPlace JsonlCursor::locate() {
  if (where_ != Where::text) find_text();
  return {window_.offset(), skip_};
}

void JsonlCursor::write(std::int64_t count, TokenWriter& to) {
  const auto until = to.missing() - static_cast<std::size_t>(count);
  while (to.missing() > until) {
    if (where_ != Where::text) find_text();
    const auto wanted = to.missing() - until;
    if (skip_ == 0) write_stretch(wanted, to);
    if (to.missing() > until) write_piece(to.missing() - until, to);
  }
}

void JsonlCursor::write_stretch(std::size_t wanted, TokenWriter& to) {
  std::array<char, stretch_bytes + stretch_padding> decoded;
  Stretch done;
  do {
    done = decode_stretch(window_.here(), decoded.data(), std::min(wanted, stretch_bytes));
    to.write_bytes({decoded.data(), done.decoded});
    window_.advance(done.raw);
    wanted -= done.decoded;
  } while (done.decoded == stretch_bytes);
}

void JsonlCursor::write_piece(std::size_t wanted, TokenWriter& to) {
  const auto piece = next_piece(window_.here());
  if (skip_ > 0 && (piece.kind == StringPiece::plain || piece.kind == StringPiece::end)) fail("begins no escape");
  switch (piece.kind) {
    case StringPiece::plain: break;  // Of a window just filled: the next stretch.
    case StringPiece::escape: {
      if (skip_ >= piece.decoded_size) fail("begins another escape");
      const auto part = piece.text().substr(skip_, wanted);
      to.write_bytes(part);
      skip_ += static_cast<unsigned>(part.size());
      if (skip_ < piece.decoded_size) return;
      window_.advance(piece.raw);
      skip_ = 0;
      break;
    }
    case StringPiece::end:
      to.write(end_of_document);
      window_.advance(piece.raw);
      where_ = Where::line_rest;
      break;
    case StringPiece::incomplete: need(); break;
    case StringPiece::half_pair:
    case StringPiece::invalid: fail("begins no escape");
  }
}

void JsonlCursor::find_text() {
  if (where_ == Where::line_rest) pass_line_rest();
  while (true) {
    if (pass_bad_lines()) continue;
    pass_byte_order_mark();
    pass_space();
    if (peek() == '{') break;
    expect('\n');
  }
  find_field();
}

void JsonlCursor::find_field() {
  expect('{');
  while (true) {
    pass_space();
    expect('"');
    const bool found = pass_string(text_field_);
    pass_space();
    expect(':');
    pass_space();
    if (found) break;
    pass_value();
    expect(',');
  }
  expect('"');
  where_ = Where::text;
}

void JsonlCursor::pass_line_rest() {
  // A newline stands in no JSON string.
  auto newline = window_.here().find('\n');
  while (newline == std::string_view::npos) {
    window_.advance(window_.here().size());
    need();
    newline = window_.here().find('\n');
  }
  window_.advance(newline + 1);
  where_ = Where::line_start;
}

bool JsonlCursor::pass_bad_lines() {
  const auto found = std::lower_bound(skipped_.begin(), skipped_.end(), window_.offset(),
                                      [](const ByteRange& range, std::uint64_t at) { return range.begin < at; });
  if (found == skipped_.end() || found->begin != window_.offset()) return false;
  window_.jump(found->end);
  return true;
}

void JsonlCursor::pass_byte_order_mark() {
  if (peek() != byte_order_mark.front()) return;
  for (const char byte : byte_order_mark) expect(byte);
}

void JsonlCursor::pass_space() {
  while (peek() == ' ' || peek() == '\t' || peek() == '\r') window_.advance(1);
}

void JsonlCursor::pass_value() {
  for (std::int64_t depth = 0;;) {
    const char c = peek();
    if (depth == 0 && (c == ',' || c == '}')) return;
    if (c == '\n') fail("ends the line, where its text was to come");
    window_.advance(1);
    if (c == '"') pass_string({});
    else if (c == '{' || c == '[') ++depth;
    else if (c == '}' || c == ']') --depth;
  }
}

bool JsonlCursor::pass_string(std::string_view equal_to) {
  bool equal = true;
  std::size_t at = 0;
  const auto compare = [&](std::string_view part) {
    equal = equal && at <= equal_to.size() && equal_to.substr(at, part.size()) == part;
    at += part.size();
  };
  while (true) {
    const auto piece = next_piece(window_.here());
    switch (piece.kind) {
      case StringPiece::plain: compare(window_.here().substr(0, piece.raw)); break;
      case StringPiece::escape: compare(piece.text()); break;
      case StringPiece::half_pair: equal = false; break;
      case StringPiece::incomplete: need(); continue;
      case StringPiece::invalid: fail("begins no escape");
      case StringPiece::end: break;
    }
    window_.advance(piece.raw);
    if (piece.kind == StringPiece::end) return equal && at == equal_to.size();
  }
}

}  // namespace levada
