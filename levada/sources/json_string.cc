#include "levada/sources/json_string.h"

#include <algorithm>
#include <bit>

#include "levada/sources/byte_block.h"

namespace levada {
namespace {

constexpr StringPiece invalid{.kind = StringPiece::invalid};
constexpr StringPiece half_pair{.kind = StringPiece::half_pair, .raw = 6};

/// What a letter behind a backslash stands for; 0: nothing, or more letters belong to it.
constexpr auto simple_escapes = [] {
  std::array<char, 256> table{};
  table['"'] = '"', table['\\'] = '\\', table['/'] = '/', table['b'] = '\b';
  table['f'] = '\f', table['n'] = '\n', table['r'] = '\r', table['t'] = '\t';
  return table;
}();

char simple_escape(char letter) {
  return simple_escapes[static_cast<unsigned char>(letter)];
}

constexpr auto hex_digits = [] {
  std::array<std::int8_t, 256> table{};
  table.fill(-1);
  for (int i = 0; i < 10; ++i) table[static_cast<std::size_t>('0' + i)] = static_cast<std::int8_t>(i);
  for (int i = 0; i < 6; ++i) {
    table[static_cast<std::size_t>('a' + i)] = table[static_cast<std::size_t>('A' + i)] =
        static_cast<std::int8_t>(10 + i);
  }
  return table;
}();

/// The value of four hexadecimal digits; negative where they are none.
std::int32_t four_digits(const char* digits) {
  const auto digit = [&](int i) { return std::int32_t{hex_digits[static_cast<unsigned char>(digits[i])]}; };
  return digit(0) * 4096 | digit(1) * 256 | digit(2) * 16 | digit(3);
}

StringPiece encoded(std::uint32_t code, std::size_t raw) {
  StringPiece piece{.kind = StringPiece::escape, .raw = raw};
  const auto put = [&](std::uint32_t byte) { piece.decoded[piece.decoded_size++] = static_cast<char>(byte); };
  const auto follow = [&](unsigned shift) { put(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | (code >> 6)), follow(0);
  } else if (code < 0x10000) {
    put(0xe0 | (code >> 12)), follow(6), follow(0);
  } else {
    put(0xf0 | (code >> 18)), follow(12), follow(6), follow(0);
  }
  return piece;
}

/// What the backslash at the front of `raw` begins.
StringPiece read_escape(std::string_view raw) {
  if (raw.size() < 2) return {.kind = StringPiece::incomplete};
  if (raw[1] != 'u') {
    const char letter = simple_escape(raw[1]);
    if (letter == '\0') return invalid;
    return {.kind = StringPiece::escape, .decoded_size = 1, .decoded = {letter}, .raw = 2};
  }
  if (raw.size() < 6) return {.kind = StringPiece::incomplete};
  const auto first = four_digits(raw.data() + 2);
  if (first < 0) return invalid;
  if (first < 0xd800 || first >= 0xe000) return encoded(static_cast<std::uint32_t>(first), 6);
  if (first >= 0xdc00) return half_pair;
  // What comes next tells, as far as it goes: the string may end before a second escape would.
  constexpr std::string_view next = "\\u";
  const auto behind = raw.substr(6);
  if (behind.substr(0, 2) != next.substr(0, behind.size())) return half_pair;
  if (raw.size() < longest_escape) return {.kind = StringPiece::incomplete};
  const auto second = four_digits(raw.data() + 8);
  if (second < 0xdc00 || second >= 0xe000) return half_pair;
  return encoded(static_cast<std::uint32_t>(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)), longest_escape);
}

std::size_t plain_length(std::string_view raw) {
  std::size_t at = 0;
  for (; at + ByteBlock::size <= raw.size(); at += ByteBlock::size) {
    const ByteBlock block(raw.data() + at);
    const auto special = block.equal('"') | block.equal('\\');
    if (special != 0) return at + static_cast<std::size_t>(std::countr_zero(special));
  }
  while (at < raw.size() && raw[at] != '"' && raw[at] != '\\') ++at;
  return at;
}

/// Backslashes that begin an escape, and the letters behind them, in a block that begins outside of one.
struct Escapes {
  std::uint64_t backslashes = 0, letters = 0;
};

// Without a loop over the bits (as simdjson does since 3.3): in a row of backslashes every second one is a letter. The
// subtraction carries along each row and so tells the rows that begin at odd bits from those that begin at even ones.
Escapes find_escapes(std::uint64_t backslashes) {
  constexpr std::uint64_t odd_bits = 0xaaaaaaaaaaaaaaaa;
  const auto both = (((backslashes << 1) | odd_bits) - backslashes) ^ odd_bits;
  return {.backslashes = both & backslashes, .letters = both ^ backslashes};
}

/// Whether the `letters` of `block` are those of escapes of two. Most are an n or a quote, so these come first.
std::uint64_t simple_letters(const ByteBlock& block, std::uint64_t letters) {
  auto simple = letters & (block.equal('n') | block.equal('"'));
  if (simple == letters) return simple;
  for (const char letter : {'\\', 't', '/', 'r', 'b', 'f'}) simple |= letters & block.equal(letter);
  return simple;
}

// std::popcount is a call where the processor need not have the instruction, as on x86-64 in general.
std::size_t count_bits(std::uint64_t bits) {
  bits -= (bits >> 1) & 0x5555555555555555;
  bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333);
  bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0f;
  return (bits * 0x0101010101010101) >> 56;
}

constexpr std::uint64_t lowest_bits(std::size_t count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

/// The stretch in the first `size` bytes of a block that begins outside of an escape.
Stretch count_in_block(const ByteBlock& block, std::size_t size) {
  const auto there = lowest_bits(size);
  const auto backslashes = block.equal('\\') & there;
  if (backslashes == 0) return {size, size};
  const auto escapes = find_escapes(backslashes);
  // Ends before the first backslash that begins something else, or whose letter is not in the block.
  const auto others = escapes.backslashes & ~(simple_letters(block, escapes.letters & there) >> 1);
  if (others == 0) return {size, size - count_bits(escapes.backslashes)};
  const auto length = static_cast<std::size_t>(std::countr_zero(others));
  return {length, length - count_bits(escapes.backslashes & lowest_bits(length))};
}

}  // namespace

StringPiece next_piece(std::string_view raw) {
  if (raw.empty()) return {.kind = StringPiece::incomplete};
  if (raw.front() == '"') return {.kind = StringPiece::end, .raw = 1};
  if (raw.front() == '\\') return read_escape(raw);
  return {.kind = StringPiece::plain, .raw = plain_length(raw)};
}

Stretch count_stretch(std::string_view raw, std::size_t most) {
  Stretch done;
  while (done.raw < raw.size()) {
    const auto size = std::min(raw.size() - done.raw, ByteBlock::size);
    const auto found = count_in_block(ByteBlock(raw.data() + done.raw), size);
    if (found.raw == 0 || found.decoded > most - done.decoded) break;
    done.raw += found.raw;
    done.decoded += found.decoded;
  }
  return done;
}

Stretch decode_stretch(std::string_view raw, char* to, std::size_t most) {
  Stretch done;
  while (done.raw < raw.size() && done.decoded < most) {
    const auto* from = raw.data() + done.raw;
    const ByteBlock block(from);
    block.store(to + done.decoded);
    const auto special = block.equal('"') | block.equal('\\');
    const auto plain =
        std::min({static_cast<std::size_t>(std::countr_zero(special)), raw.size() - done.raw, most - done.decoded});
    done.raw += plain;
    done.decoded += plain;
    if (plain == ByteBlock::size) continue;
    if (raw.size() - done.raw < 2 || done.decoded == most || from[plain] != '\\') break;
    const char letter = simple_escape(from[plain + 1]);
    if (letter == '\0') break;
    to[done.decoded++] = letter;
    done.raw += 2;
  }
  return done;
}

}  // namespace levada
