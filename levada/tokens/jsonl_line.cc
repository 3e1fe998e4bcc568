#include "levada/tokens/jsonl_line.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

namespace ondemand = simdjson::ondemand;

static_assert(line_padding >= simdjson::SIMDJSON_PADDING);
constexpr int max_depth = 512;
constexpr std::size_t max_shown = 100;  ///< bytes of a name in a message
/// Allowed at the start of any line, since files that begin with it may have been concatenated.
constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Checks RFC 8259's grammar, with any magnitude, unlike simdjson, which rejects integers beyond 64 bits.
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

/// `raw` is the text between the quotes of a string. Accepts unpaired surrogates like other escapes.
void check_escapes(std::string_view raw) {
  for (auto at = raw.find('\\'); at != raw.npos; at = raw.find('\\', at)) {
    const auto escape = raw.substr(at, 6);
    const bool is_unicode =
        escape.size() == 6 && escape[1] == 'u' &&
        std::ranges::all_of(escape.substr(2), [](unsigned char c) { return std::isxdigit(c) != 0; });
    const bool is_short = escape.size() > 1 && std::string_view("\"\\/bfnrt").find(escape[1]) != raw.npos;
    if (!is_unicode && !is_short) {
      throw BadLine(fmt::format("it is not JSON: an escape is wrong, at {}", printable(cut_text(escape, 6))));
    }
    at += is_unicode ? 6 : 2;
  }
}

/// Floats that Python's json writes and JSON does not have.
bool is_special_float(std::string_view token) {
  return token == "NaN" || token == "Infinity" || token == "-Infinity";
}

ondemand::field field_of(simdjson::simdjson_result<ondemand::field> result) {
  ondemand::field entry;
  if (const auto error = std::move(result).get(entry)) throw simdjson::simdjson_error(error);
  return entry;
}

/// Returns the text between the quotes of a key; `raw` begins with the key's first byte.
std::string_view key_in(std::string_view raw) {
  for (auto quote = raw.find('"'); quote != raw.npos; quote = raw.find('"', quote + 1)) {
    const auto last = raw.substr(0, quote).find_last_not_of('\\');
    const auto backslashes = quote - (last == raw.npos ? 0 : last + 1);
    if (backslashes % 2 == 0) return raw.substr(0, quote);
  }
  throw BadLine("it is not JSON: a string has no end");
}

/// Returns the text between the quotes of a string token, which white space may follow.
std::string_view between_quotes(std::string_view token) {
  token = without_trailing_space(token);
  if (token.size() < 2 || token.back() != '"') throw BadLine("it is not JSON: a string has no end");
  return token.substr(1, token.size() - 2);
}

}  // namespace

struct JsonlParser::State {
  std::string text_field;
  bool lists = false;
  ondemand::parser parser;
  std::string_view line;

  std::string_view raw_key(ondemand::field& entry) const {
    const auto raw = key_in(line.substr(static_cast<std::size_t>(entry.key().raw() - line.data())));
    check_escapes(raw);
    return raw;
  }
  /// Returns the name of a field. An unpaired surrogate stays escaped: no UTF-8 name contains one.
  std::string_view name_of(ondemand::field& entry) const {
    const auto raw = raw_key(entry);
    std::string_view key;
    const bool is_plain = raw.find('\\') == raw.npos;
    return !is_plain && entry.unescaped_key().get(key) == simdjson::SUCCESS ? key : raw;
  }

  static std::string_view decoded(ondemand::value value) {
    const auto raw = between_quotes(value.raw_json_token());
    std::string_view text;
    if (value.get_string().get(text) == simdjson::SUCCESS) return text;
    check_escapes(raw);
    throw BadLine("it contains an unpaired surrogate");
  }

  /// Returns the text of the field named `wanted` in `object`, or, for "a.b", of field b in its field a; nothing if
  /// there is no such field. Throws BadLine and simdjson_error.
  std::optional<std::string_view> find_text(ondemand::object object, std::string_view wanted, int depth,
                                            ondemand::document& document) {
    if (depth > max_depth) throw BadLine(fmt::format("its values are nested deeper than {}", max_depth));
    std::optional<std::string_view> found;
    const auto note = [&](std::optional<std::string_view> text) {
      if (text && found) throw BadLine(fmt::format("it has two fields \"{}\"", text_field));
      if (text) found = text;
    };
    for (auto each : object) {
      auto entry = field_of(std::move(each));
      const auto name = name_of(entry);
      const bool is_above = wanted.size() > name.size() && wanted[name.size()] == '.' && wanted.starts_with(name);
      const bool is_wanted = name == wanted;
      const auto rest = is_above ? wanted.substr(name.size() + 1) : std::string_view();
      ondemand::value value = entry.value();
      if (is_wanted) {
        if (value.type() != (lists ? ondemand::json_type::array : ondemand::json_type::string)) {
          throw BadLine(fmt::format("its field \"{}\" is not a {}", text_field, lists ? "list" : "string"));
        }
        note(lists ? checked(value, document) : decoded(value));
      } else if (is_above && std::string_view(value.raw_json_token()).starts_with('{')) {
        note(find_text(value.get_object(), rest, depth + 1, document));
      } else {
        check(value, depth);
      }
    }
    return found;
  }

  /// Validates a list and returns its source text.
  std::string_view checked(ondemand::value value, ondemand::document& document) const {
    const char* begin = value.raw_json_token().data();
    check(value, 1);
    const char* behind = document.current_location().value();
    return without_trailing_space({begin, static_cast<std::size_t>(behind - begin)});
  }

  // The on-demand parser checks only the values that are read, so all are.
  void check(ondemand::value value, int depth) const {
    if (depth > max_depth) throw BadLine(fmt::format("its values are nested deeper than {}", max_depth));
    if (is_special_float(without_trailing_space(value.raw_json_token()))) return;
    switch (const ondemand::json_type type = value.type(); type) {
      case ondemand::json_type::object:
        for (auto each : value.get_object()) {
          auto entry = field_of(std::move(each));
          static_cast<void>(raw_key(entry));
          check(entry.value(), depth + 1);
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

  // If not consumed, a string before a colon would be taken for a key.
  static void pass_string(ondemand::value value) { static_cast<void>(value.get_raw_json_string().value()); }

  static void check_token(std::string_view token, ondemand::json_type type) {
    const auto text = without_trailing_space(token);
    const bool good =
        type == ondemand::json_type::number ? is_number(text) : text == "true" || text == "false" || text == "null";
    if (!good) throw BadLine(fmt::format("it is not JSON: \"{}\" is not a value", printable(cut_text(text, 32))));
  }

  std::string field_names() {
    std::string names;
    ondemand::document document = parser.iterate(line, line.size() + line_padding);
    for (auto each : document.get_object()) {
      if (names.size() > 200) return names + ", ...";
      auto entry = field_of(std::move(each));
      const std::string raw(raw_key(entry));
      std::string_view key;
      const bool is_text = entry.unescaped_key().get(key) == simdjson::SUCCESS;
      names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", cut_text(printable(is_text ? key : raw), max_shown));
    }
    return names;
  }
};

JsonlParser::JsonlParser(std::string text_field, bool lists) : state_(std::make_unique<State>()) {
  state_->text_field = std::move(text_field);
  state_->lists = lists;
}
JsonlParser::~JsonlParser() = default;

std::string_view JsonlParser::text(std::string_view line) try {
  auto& state = *state_;
  // Some versions of the parser skip the mark, some do not.
  if (line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
  if (line.starts_with(byte_order_mark)) throw BadLine("it is not JSON: it begins with two byte order marks");
  state.line = line;
  // Grows to powers of two. Otherwise the parser would reallocate for every slightly longer line.
  if (state.parser.capacity() < line.size()) {
    if (auto error = state.parser.allocate(std::bit_ceil(line.size()))) throw simdjson::simdjson_error(error);
  }
  ondemand::document document = state.parser.iterate(line, line.size() + line_padding);
  if (document.type() != ondemand::json_type::object) throw BadLine("it is not a JSON object");
  const auto found = state.find_text(document.get_object(), state.text_field, 1, document);
  if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
    throw BadLine("it is not JSON: something follows the object");
  }
  if (found) return *found;
  const auto names = state.field_names();
  if (names.empty()) throw BadLine(fmt::format("it has no field \"{}\", nor any other", state.text_field));
  throw BadLine(fmt::format("it has no field \"{}\", but {}", state.text_field, names),
                "name another field (text_field=, --text-field)");
} catch (const simdjson::simdjson_error& error) {
  switch (error.error()) {
    case simdjson::MEMALLOC: throw SourceError("there is not enough memory to parse it");
    case simdjson::UTF8_ERROR: throw BadLine("it is not UTF-8");
    case simdjson::UNESCAPED_CHARS: throw BadLine("it is not JSON: a string contains a control character");
    case simdjson::UNCLOSED_STRING: throw BadLine("it is not JSON: a string has no end");
    default: throw BadLine("it is not JSON: a comma, colon, brace or value is missing or out of place");
  }
}

bool is_blank(std::string_view line) {
  if (line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
  return line.find_first_not_of(" \t\r") == line.npos;
}

}  // namespace levada
