// JSON, read and written. For the library's own sources: it is not installed, since who uses the library need not have
// the parser.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace levada {

/// The value, its keys in their order. The text may lie: objects and lists that nest deeper than `deepest`, keys that
/// stand twice in one object and what is no JSON are refused with InvalidArgument, which begins with `what` and a
/// colon, unless it is empty, and says where it is wrong.
nlohmann::ordered_json parse_json(std::string_view text, int deepest, std::string_view what);

/// One line. What is no UTF-8 in it, such as a file's name may be, comes out as U+FFFD.
template <typename Json>
std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Returns `object`, which has members already, with one more. Both are JSON, which stays unparsed.
inline std::string with_member(std::string object, std::string_view name, std::string_view value) {
  object.pop_back();
  return object.append(",\"").append(name).append("\":").append(value).append("}");
}

}  // namespace levada
