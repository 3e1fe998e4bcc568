#include "levada/sources/jsonl_line.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <bit>
#include <optional>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/sources/json_string.h"

namespace levada {
namespace {

namespace ondemand = simdjson::ondemand;

static_assert(line_padding >= simdjson::SIMDJSON_PADDING && line_padding >= stretch_padding);
constexpr int deepest = 512;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// RFC 8259's grammar; any magnitude, unlike simdjson, which refuses integers beyond 64 bits.
bool is_number(std::string_view text) {
  std::size_t at = 0;
  const auto digits = [&] {
    const auto before = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at > before;
  };
  const auto is_at = [&](std::string_view any) { return at < text.size() && any.find(text[at]) != any.npos; };
  if (is_at("-")) ++at;
  if (is_at("0")) ++at;
  else if (!digits()) return false;
  if (is_at(".") && (++at, !digits())) return false;
  if (is_at("eE")) {
    ++at;
    if (is_at("+-")) ++at;
    if (!digits()) return false;
  }
  return at == text.size();
}

std::string_view without_trailing_space(std::string_view text) {
  const auto last = text.find_last_not_of(" \t\r\n");
  return text.substr(0, last == text.npos ? 0 : last + 1);
}

/// The decoded bytes of a key, whose raw ones begin at the front of `raw`.
std::string decoded(std::string_view raw) {
  std::string text;
  while (true) {
    const auto piece = next_piece(raw);
    switch (piece.kind) {
      case StringPiece::end: return text;
      case StringPiece::plain: text += raw.substr(0, piece.raw); break;
      case StringPiece::escape: text += piece.text(); break;
      case StringPiece::half_pair: text += '\xff'; break;  // It is in no name of a field that is UTF-8.
      default: throw BadLine(wrong_escape(raw));
    }
    raw.remove_prefix(piece.raw);
  }
}

/// `raw`: all of a string, behind which its closing quote stands.
void check_escapes(std::string_view raw) {
  while (!raw.empty()) {
    auto length = count_stretch(raw, raw.size()).raw;
    if (length == 0) {
      const auto piece = next_piece({raw.data(), raw.size() + 1});
      if (piece.kind != StringPiece::escape && piece.kind != StringPiece::half_pair) throw BadLine(wrong_escape(raw));
      length = piece.raw;
    }
    raw.remove_prefix(length);
  }
}

/// What Python's json writes of floats that JSON has not.
bool is_special_float(std::string_view token) {
  return token == "NaN" || token == "Infinity" || token == "-Infinity";
}

/// What stands between the quotes of a string's token, behind which there may be white space.
std::string_view between_quotes(std::string_view token) {
  token = without_trailing_space(token);
  if (token.size() < 2 || token.back() != '"') throw BadLine("it is not JSON: a string has no end");
  return token.substr(1, token.size() - 2);
}

}  // namespace

struct JsonlChecker::State {
  std::string text_field;
  ondemand::parser parser;
  std::size_t capacity = 0;
  std::string_view line;

  std::string_view behind(const char* at) const { return line.substr(static_cast<std::size_t>(at - line.data())); }

  /// Walks the top object; raw text of the field, empty if there is none. Throws BadLine and simdjson_error.
  std::optional<std::string_view> find_text(ondemand::document& document) const {
    std::optional<std::string_view> found;
    for (auto entry : document.get_object()) {
      const bool wanted = decoded(behind(entry.key().value().raw())) == text_field;
      if (wanted && found) throw BadLine(fmt::format("it has two fields \"{}\"", text_field));
      ondemand::value value = entry.value().value();
      if (!wanted) {
        check(value, 1);
        continue;
      }
      if (value.type() != ondemand::json_type::string) {
        throw BadLine(fmt::format("its field \"{}\" is not a string", text_field));
      }
      found = between_quotes(value.raw_json_token());
      pass_string(value);
    }
    return found;
  }

  // The on-demand parser checks what is looked at, so everything is.
  void check(ondemand::value value, int depth) const {
    if (depth > deepest) throw BadLine(fmt::format("its values are nested deeper than {}", deepest));
    if (is_special_float(without_trailing_space(value.raw_json_token()))) return;
    switch (const ondemand::json_type type = value.type(); type) {
      case ondemand::json_type::object:
        for (auto entry : value.get_object()) {
          static_cast<void>(decoded(behind(entry.key().value().raw())));
          check(entry.value().value(), depth + 1);
        }
        break;
      case ondemand::json_type::array:
        for (auto element : value.get_array()) check(std::move(element).value(), depth + 1);
        break;
      case ondemand::json_type::string:
        check_escapes(between_quotes(value.raw_json_token()));
        pass_string(value);
        break;
      default: check_token(value.raw_json_token(), type);
    }
  }

  // Left standing, a string before a colon would be taken for a key.
  static void pass_string(ondemand::value value) { static_cast<void>(value.get_raw_json_string().value()); }

  static void check_token(std::string_view token, ondemand::json_type type) {
    const auto text = without_trailing_space(token);
    const bool good =
        type == ondemand::json_type::number ? is_number(text) : text == "true" || text == "false" || text == "null";
    if (!good) throw BadLine(fmt::format("it is not JSON: \"{}\" is no value", printable(cut_text(text, 32))));
  }

  std::string field_names() {
    std::string names;
    ondemand::document document = parser.iterate(line, line.size() + line_padding);
    for (auto entry : document.get_object()) {
      if (names.size() > 200) return names + ", ...";
      names +=
          fmt::format("{}\"{}\"", names.empty() ? "" : ", ", printable(decoded(behind(entry.key().value().raw()))));
    }
    return names;
  }
};

JsonlChecker::JsonlChecker(std::string text_field) : state_(std::make_unique<State>()) {
  state_->text_field = std::move(text_field);
}
JsonlChecker::~JsonlChecker() = default;

std::string_view JsonlChecker::text(std::string_view line) try {
  auto& state = *state_;
  // Some versions of the parser pass over a mark, some do not.
  if (line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
  if (line.starts_with(byte_order_mark)) throw BadLine("it is not JSON: it begins with two byte order marks");
  state.line = line;
  // In steps, for the parser would allocate anew for every line that is a little longer than those before.
  if (state.parser.capacity() < line.size()) {
    if (auto error = state.parser.allocate(std::bit_ceil(line.size()))) throw simdjson::simdjson_error(error);
  }
  ondemand::document document = state.parser.iterate(line, line.size() + line_padding);
  if (document.type() != ondemand::json_type::object) throw BadLine("it is not a JSON object");
  const auto found = state.find_text(document);
  if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
    throw BadLine("it is not JSON: something follows the object");
  }
  if (found) return *found;
  const auto names = state.field_names();
  throw BadLine(names.empty() ? fmt::format("it has no field \"{}\", nor any other", state.text_field)
                              : fmt::format("it has no field \"{}\", but {}", state.text_field, names));
} catch (const simdjson::simdjson_error& error) {
  switch (error.error()) {
    case simdjson::MEMALLOC: throw SourceError("there is not enough memory to parse it");
    case simdjson::UTF8_ERROR: throw BadLine("it is not UTF-8");
    case simdjson::UNESCAPED_CHARS: throw BadLine("it is not JSON: a control character stands in a string");
    case simdjson::UNCLOSED_STRING: throw BadLine("it is not JSON: a string has no end");
    default: throw BadLine("it is not JSON: a comma, colon, brace or value is missing or out of place");
  }
}

std::string wrong_escape(std::string_view raw) {
  const auto where = printable(cut_text(raw, longest_escape));
  // If the text ends behind the half of a pair, the piece is incomplete.
  constexpr std::size_t half_bytes = 6;
  const bool is_half = raw.size() >= half_bytes && next_piece(raw).kind != StringPiece::invalid;
  return fmt::format("{}, at {}",
                     is_half ? "half of a surrogate pair stands alone in it" : "it is not JSON: an escape is wrong",
                     where);
}

bool is_blank(std::string_view line) {
  if (line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
  return line.find_first_not_of(" \t\r") == line.npos;
}

}  // namespace levada
