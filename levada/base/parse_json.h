// JSON from outside. For the library's own sources: it is not installed, since who uses the library need not have the
// parser.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace levada {

/// The value, its keys in their order. The text may lie: objects and lists that nest deeper than `deepest`, keys that
/// stand twice in one object and what is no JSON are refused with InvalidArgument, which begins with `what` and a
/// colon, unless it is empty, and says where it is wrong.
nlohmann::ordered_json parse_json(std::string_view text, int deepest, std::string_view what);

}  // namespace levada
