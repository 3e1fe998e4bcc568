#include <fmt/format.h>

#include <limits>
#include <unordered_map>

#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/base/text.h"
#include "levada/plan/layout.h"

namespace levada {
namespace {

using Json = nlohmann::ordered_json;

/// The format nests three levels deep; deeper input is rejected early.
constexpr int max_depth = 8;

[[noreturn]] void throw_invalid(std::string_view where, std::string_view what) {
  throw InvalidArgument(printable(fmt::format("layout JSON: {}: {}", where, what)));
}

const std::string& text_of(const Json& value, std::string_view where) {
  if (!value.is_string()) throw_invalid(where, fmt::format("expected a string, got {}", value.type_name()));
  return value.get_ref<const std::string&>();
}

void expect_array(const Json& value, std::string_view where) {
  if (!value.is_array()) throw_invalid(where, fmt::format("expected a list, got {}", value.type_name()));
}

void expect_object(const Json& value, std::string_view where) {
  if (!value.is_object()) throw_invalid(where, fmt::format("expected an object, got {}", value.type_name()));
}

std::vector<Placement> placements_in(const Json& value, std::string_view where) {
  expect_array(value, where);
  std::vector<Placement> placements;
  for (const Json& entry : value) {
    const auto place = fmt::format("{}[{}]", where, placements.size());
    try {
      placements.push_back(parse_placement(text_of(entry, place)));
    } catch (const InvalidArgument& error) {
      if (!entry.is_string()) throw;
      throw_invalid(place, error.what());
    }
  }
  return placements;
}

std::vector<Layout::Rule> rules_in(const Json& value) {
  expect_object(value, "fields");
  std::vector<Layout::Rule> rules;
  for (const auto& [pattern, placements] : value.items()) {
    rules.push_back({pattern, placements_in(placements, fmt::format("fields[\"{:.60}\"]", pattern)), true});
  }
  return rules;
}

void mark_optional(const Json& value, std::vector<Layout::Rule>& rules) {
  expect_array(value, "optional");
  std::unordered_map<std::string_view, Layout::Rule*> by_pattern;
  for (Layout::Rule& rule : rules) by_pattern.emplace(rule.pattern, &rule);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const auto where = fmt::format("optional[{}]", i);
    const auto& pattern = text_of(value[i], where);
    const auto found = by_pattern.find(pattern);
    if (found == by_pattern.end()) throw_invalid(where, fmt::format("\"{:.60}\" is not among the fields", pattern));
    found->second->required = false;
  }
}

std::map<std::string, std::vector<int>> stages_in(const Json& value) {
  expect_object(value, "stages");
  std::map<std::string, std::vector<int>> stages;
  for (const auto& [name, coordinates] : value.items()) {
    const auto where = fmt::format("stages[\"{:.40}\"]", name);
    if (!is_name(name)) throw_invalid(where, "a stage name consists of letters, digits and _, a letter first");
    expect_array(coordinates, where);
    auto& list = stages[name];
    for (const Json& coordinate : coordinates) {
      if (!coordinate.is_number_unsigned() ||
          coordinate.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
        throw_invalid(fmt::format("{}[{}]", where, list.size()),
                      "expected a coordinate along the pipeline axis: 0, 1, ...");
      }
      list.push_back(coordinate.get<int>());
    }
  }
  return stages;
}

Json placements_as_json(const std::vector<Placement>& placements) {
  Json list = Json::array();
  for (const Placement& placement : placements) list.push_back(to_string(placement));
  return list;
}

}  // namespace

std::string Layout::to_json() const {
  Json fields = Json::object(), optional = Json::array(), named_stages = Json::object();
  for (const Rule& rule : rules) {
    if (fields.contains(rule.pattern)) continue;
    fields[rule.pattern] = placements_as_json(rule.placements);
    if (!rule.required) optional.push_back(rule.pattern);
  }
  for (const auto& [stage, coordinates] : stages) named_stages[stage] = coordinates;
  const Json json = {{"name", name},
                     {"fields", std::move(fields)},
                     {"optional", std::move(optional)},
                     {"otherwise", placements_as_json(otherwise)},
                     {"stages", std::move(named_stages)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

Layout Layout::from_json(std::string_view text) {
  const Json json = parse_json(text, max_depth, "layout JSON");
  expect_object(json, "the whole");
  for (const auto& [key, value] : json.items()) {
    if (key == "name" || key == "fields" || key == "optional" || key == "otherwise" || key == "stages") continue;
    throw_invalid(fmt::format("\"{:.60}\"", key),
                  "unknown key; the keys are name, fields, optional, otherwise, stages");
  }
  if (!json.contains("fields"))
    throw_invalid("the whole", "\"fields\" is missing, as in {\"fields\": {\"tokens\": [\"shard(dp,0)\"]}}");
  Layout layout;
  if (json.contains("name")) layout.name = text_of(json["name"], "name");
  layout.rules = rules_in(json["fields"]);
  if (json.contains("optional")) mark_optional(json["optional"], layout.rules);
  if (json.contains("otherwise")) layout.otherwise = placements_in(json["otherwise"], "otherwise");
  if (json.contains("stages")) layout.stages = stages_in(json["stages"]);
  return layout;
}

}  // namespace levada
