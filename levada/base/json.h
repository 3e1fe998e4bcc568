// Parses and writes JSON. For the library's sources only: this header is not installed, so that users of the library do
// not need the parser.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace levada {

/// Returns the parsed value, with keys in their original order. Throws InvalidArgument for objects and lists nested
/// deeper than `max_depth`, duplicate keys in one object, and invalid JSON. The message names the position and, unless
/// `what` is empty, begins with `what` and a colon.
nlohmann::ordered_json parse_json(std::string_view text, int max_depth, std::string_view what);

/// Returns one line of JSON. Bytes that are not UTF-8, as in some file names, become U+FFFD.
template <typename Json>
std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Returns the JSON text `object`, which must have at least one member, with another member appended. Parses neither
/// text.
inline std::string with_member(std::string object, std::string_view name, std::string_view value) {
  object.pop_back();
  return object.append(",\"").append(name).append("\":").append(value).append("}");
}

}  // namespace levada
