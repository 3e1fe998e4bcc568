#include "levada/base/json.h"

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {

nlohmann::ordered_json parse_json(std::string_view text, int max_depth, std::string_view what) {
  using Json = nlohmann::ordered_json;
  const auto throw_invalid = [&](const std::string& why) {
    throw InvalidArgument(what.empty() ? why : fmt::format("{}: {}", what, why));
  };
  std::vector<std::unordered_set<std::string>> keys;  // one set for each open object
  const Json::parser_callback_t callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > max_depth) throw_invalid(fmt::format("it nests deeper than {}", max_depth));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second)
        throw_invalid(fmt::format("key \"{}\" appears twice in one object", printable(cut_text(key, 60))));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), callback);
  } catch (const Json::exception& error) {
    const std::string_view message = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    const auto bracket = message.find("] ");
    throw_invalid(
        fmt::format("it is not JSON: {}", message.substr(bracket == std::string_view::npos ? 0 : bracket + 2)));
  }
  return {};
}

}  // namespace levada
