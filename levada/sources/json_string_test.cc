#include "levada/sources/json_string.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "levada/sources/byte_block.h"

namespace levada {
namespace {

StringPiece escape(std::string_view raw) {
  return next_piece(raw);
}

std::string decoded(std::string_view raw) {
  const auto piece = next_piece(raw);
  EXPECT_EQ(piece.kind, StringPiece::escape) << raw;
  EXPECT_LE(piece.raw, raw.size());
  return std::string(piece.text());
}

TEST(JsonString, DecodesEveryEscapeOfTheStandard) {
  EXPECT_EQ(decoded(R"(\"x)"), "\"");
  EXPECT_EQ(decoded(R"(\\)"), "\\");
  EXPECT_EQ(decoded(R"(\/)"), "/");
  EXPECT_EQ(decoded(R"(\b)"), "\b");
  EXPECT_EQ(decoded(R"(\f)"), "\f");
  EXPECT_EQ(decoded(R"(\n)"), "\n");
  EXPECT_EQ(decoded(R"(\r)"), "\r");
  EXPECT_EQ(decoded(R"(\t)"), "\t");
  EXPECT_EQ(decoded(R"(\u0000)"), std::string(1, '\0'));
  EXPECT_EQ(decoded(R"(\u007F)"), "\x7f");
  EXPECT_EQ(decoded(R"(\u0080)"), "\u0080");
  EXPECT_EQ(decoded(R"(\u07ff)"), "\u07ff");
  EXPECT_EQ(decoded(R"(\u0800)"), "\u0800");
  EXPECT_EQ(decoded(R"(\uD7fF)"), "\ud7ff");
  EXPECT_EQ(decoded(R"(\uFFFF)"), "\uffff");
  EXPECT_EQ(decoded(R"(\ud800\udc00)"), "\U00010000");
  EXPECT_EQ(decoded(R"(\uDBFF\uDFFF)"), "\U0010ffff");
}

TEST(JsonString, RefusesWhatIsNoEscape) {
  for (const auto* raw : {R"(\x41)", R"(\')", R"(\u00g0)", R"(\u 123)", R"(\U0041)"}) {
    EXPECT_EQ(escape(raw).kind, StringPiece::invalid) << raw;
  }
}

TEST(JsonString, TellsHalfOfASurrogatePairFromWhatIsNoEscape) {
  for (const auto* raw : {R"(\udc00)", R"(\udfff\ud800)", R"(\ud800abcdef)", R"(\ud800\u0041)", R"(\ud800\ud800)",
                          R"(\ud800\n12345)", R"(\ud800")", R"(\ud800\n)", R"(\ud800\u00g012)"}) {
    EXPECT_EQ(escape(raw).kind, StringPiece::half_pair) << raw;
    EXPECT_EQ(escape(raw).raw, 6) << raw;
  }
}

TEST(JsonString, AsksForTheRestOfAnEscapeThatIsCut) {
  const std::string pair = R"(\ud83d\ude00)";
  for (std::size_t size = 0; size < pair.size(); ++size) {
    EXPECT_EQ(next_piece(std::string_view(pair).substr(0, size)).kind, StringPiece::incomplete) << size;
  }
  EXPECT_EQ(next_piece(pair).raw, pair.size());
}

TEST(JsonString, FindsTheEndOfPlainBytesWhereverItLies) {
  for (std::size_t length = 1; length < 200; ++length) {
    for (const char end : {'"', '\\'}) {
      const auto raw = std::string(length, 'x') + end + "yy" + std::string(100, '"');
      EXPECT_EQ(next_piece(raw).raw, length);
      EXPECT_EQ(next_piece(raw).kind, StringPiece::plain);
    }
  }
  EXPECT_EQ(next_piece("\"abc").kind, StringPiece::end);
  EXPECT_EQ(next_piece(std::string(77, 'x')).raw, 77);
}

TEST(ByteBlock, ComparesEachOfItsBytes) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::string bytes;
    for (int i = 0; i < 64; ++i) bytes += "\\\"n\x80\xdc\x01\xff"[random() % 7];
    std::uint64_t expected = 0;
    for (std::size_t i = 0; i < 64; ++i) expected |= std::uint64_t{bytes[i] == '\\'} << i;
    EXPECT_EQ(ByteBlock(bytes.data()).equal('\\'), expected);
  }
}

/// Raw text of plain bytes, rows of backslashes and escapes of all kinds, in parts of any length.
std::string random_raw(std::mt19937& random, bool only_short) {
  std::string raw;
  while (raw.size() < 300) {
    const auto kind = random() % (only_short ? 5 : 7);
    if (kind < 2) raw += std::string(random() % 90, 'a');
    else if (kind == 2) raw += std::string(2 * (random() % 40), '\\');
    else if (kind < 5) raw += std::string("\\") + "nt\"\\/rbf"[random() % 8];
    else raw += kind == 5 ? "\\u00e9" : "\\ud83d\\ude00";
  }
  return raw;
}

Stretch count_by_pieces(std::string_view raw) {
  Stretch done;
  while (!raw.empty()) {
    const auto piece = next_piece(raw);
    done.raw += piece.raw;
    done.decoded += piece.kind == StringPiece::plain ? piece.raw : piece.decoded_size;
    raw.remove_prefix(piece.raw);
  }
  return done;
}

TEST(JsonString, CountsAStretchAsItsPiecesSay) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const bool only_short = round % 2 == 0;
    const auto text = random_raw(random, only_short);
    const auto padded = text + std::string(stretch_padding, '\\');
    const auto raw = std::string_view(padded).substr(0, text.size());
    const auto all = count_stretch(raw, text.size());
    EXPECT_TRUE(!only_short || all.raw == text.size());
    EXPECT_EQ(count_by_pieces(raw.substr(0, all.raw)).decoded, all.decoded);
    const auto part = count_stretch(raw, 100);
    EXPECT_LE(part.decoded, 100);
    EXPECT_EQ(count_by_pieces(raw.substr(0, part.raw)).decoded, part.decoded);
    EXPECT_TRUE(!only_short || part.decoded >= 100 - 64);
  }
}

TEST(JsonString, DecodesAStretchAsItsPiecesSay) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const auto text = random_raw(random, round % 2 == 0);
    const auto padded = text + std::string(stretch_padding, '\\');
    auto raw = std::string_view(padded).substr(0, text.size());
    const std::size_t most = random() % 400;
    std::string expected;
    while (!raw.empty() && expected.size() < most) {
      const auto piece = next_piece(raw);
      if (piece.raw > 2 && piece.kind == StringPiece::escape) break;
      expected += piece.kind == StringPiece::plain ? raw.substr(0, piece.raw) : piece.text();
      raw.remove_prefix(piece.raw);
    }
    expected.resize(std::min(expected.size(), most));
    std::string decoded(most + stretch_padding, '\0');
    const auto done = decode_stretch(std::string_view(padded).substr(0, text.size()), decoded.data(), most);
    EXPECT_EQ(done.decoded, expected.size());
    EXPECT_EQ(decoded.substr(0, done.decoded), expected);
    EXPECT_EQ(count_by_pieces(std::string_view(padded).substr(0, done.raw)).decoded, done.decoded);
  }
}

TEST(JsonString, CountsNothingWhereALongOrWrongEscapeBegins) {
  for (const auto* raw : {R"(\u0041)", R"(\x)"}) {
    const auto padded = raw + std::string(stretch_padding, 'n');
    EXPECT_EQ(count_stretch(std::string_view(padded).substr(0, 2), 100).raw, 0);
  }
}

}  // namespace
}  // namespace levada
