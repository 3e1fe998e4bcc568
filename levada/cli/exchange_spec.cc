#include "levada/cli/exchange_spec.h"

#include <fmt/format.h>

#include <set>

#include "levada/base/error.h"
#include "levada/base/json.h"

namespace levada::cli {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void throw_invalid(std::string_view where, std::string_view what) {
  throw InvalidArgument(fmt::format("{}: {}", where, what));
}

/// Returns the result of `make`. Adds the place to an error that it throws.
template <typename Make>
auto with_place(std::string_view where, Make&& make) {
  try {
    return make();
  } catch (const InvalidArgument& error) {
    throw_invalid(where, error.what());
  }
}

/// Returns the value as T. nlohmann's conversions check only the kind, so the range is checked here.
template <typename T>
T get(const Json& value, std::string_view where, std::string_view what) {
  bool fits = false;
  if constexpr (std::is_same_v<T, bool>) fits = value.is_boolean();
  else if constexpr (std::is_same_v<T, std::string>) fits = value.is_string();
  else fits = value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<T>::max()};
  if (!fits) throw_invalid(where, fmt::format("expected {}", what));
  return value.get<T>();
}

template <typename T>
std::vector<T> get_list(const Json& value, std::string_view where, std::string_view what) {
  if (!value.is_array()) throw_invalid(where, fmt::format("expected a list of {}s", what));
  std::vector<T> list;
  for (const Json& each : value) list.push_back(get<T>(each, where, fmt::format("a {}", what)));
  return list;
}

const Json& need(const Json& object, const char* name, std::string_view where) {
  if (!object.is_object()) throw_invalid(where, "expected an object");
  if (!object.contains(name)) throw_invalid(where, fmt::format("\"{}\" is missing", name));
  return object[name];
}

void allow_only(const Json& object, const std::set<std::string>& names, std::string_view where) {
  if (!object.is_object()) throw_invalid(where, "expected an object");
  for (const auto& [name, value] : object.items()) {
    if (!names.contains(name)) throw_invalid(where, fmt::format("unknown key \"{:.60}\"", name));
  }
}

void add_destinations(const Json& value, const std::string& where, std::vector<Destination>& destinations) {
  allow_only(value, {"ranks", "ids", "mesh", "first", "cp"}, where);
  const Json& ids = need(value, "ids", where);
  if (!value.contains("mesh")) {
    if (value.contains("cp") || value.contains("first"))
      throw_invalid(where, "\"first\" and \"cp\" require a \"mesh\"");
    destinations.push_back({get_list<int>(need(value, "ranks", where), where + ".ranks", "rank"),
                            get_list<std::string>(ids, where + ".ids", "string")});
    return;
  }
  if (value.contains("ranks"))
    throw_invalid(where, "\"ranks\" and \"mesh\" exclude each other; \"first\" is the first rank of a mesh");
  const auto name = get<std::string>(value["mesh"], where + ".mesh", "a mesh such as dp=2,tp=2");
  const Mesh mesh = with_place(where, [&] { return Mesh::parse(name); });
  const int first = value.contains("first") ? get<int>(value["first"], where + ".first", "a rank") : 0;
  if (mesh.size() > max_ranks || first > max_ranks) throw_invalid(where, "it exceeds a million ranks");
  std::vector<std::vector<std::string>> lists;
  if (!ids.is_array()) throw_invalid(where + ".ids", "expected a list of ids for each coordinate along the data axes");
  for (const Json& list : ids) lists.push_back(get_list<std::string>(list, where + ".ids", "string"));
  const auto cut = value.contains("cp") ? get<std::string>(value["cp"], where + ".cp", "whole, consecutive or zigzag")
                                        : std::string("whole");
  const Placement sequences = with_place(where + ".cp", [&] { return sequence_placement(cut); });
  auto made =
      with_place(where, [&] { return destinations_of(ModelRanks::from(mesh, first), std::move(lists), sequences); });
  std::ranges::move(made, std::back_inserter(destinations));
}

void add_holders(const Json& value, const std::string& where, SampleDirectory& directory) {
  allow_only(value, {"ranks", "samples"}, where);
  const std::string text = json_text(need(value, "samples", where));
  const auto samples = with_place(where, [&] { return SampleBatch::from_json(text); });
  for (const int rank : get_list<int>(need(value, "ranks", where), where + ".ranks", "rank"))
    directory.add(rank, samples);
}

}  // namespace

ExchangeSpec ExchangeSpec::from_json(std::string_view text) {
  constexpr int max_depth = 16;
  const Json json = parse_json(text, max_depth, {});
  allow_only(json, {"holders", "destinations", "keys", "cut_keys", "allow_absent", "hosts"}, "the whole");
  ExchangeSpec spec;
  const Json& holders = need(json, "holders", "the whole");
  if (!holders.is_array()) throw_invalid("holders", "expected a list");
  for (std::size_t i = 0; i < holders.size(); ++i)
    add_holders(holders[i], fmt::format("holders[{}]", i), spec.directory);
  const Json& destinations = need(json, "destinations", "the whole");
  if (!destinations.is_array()) throw_invalid("destinations", "expected a list");
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    add_destinations(destinations[i], fmt::format("destinations[{}]", i), spec.request.destinations);
  }
  for (const SampleKey& key : spec.directory.keys()) spec.request.keys.push_back(key.name);
  if (json.contains("keys")) spec.request.keys = get_list<std::string>(json["keys"], "keys", "string");
  if (json.contains("cut_keys")) spec.request.cut_keys = get_list<std::string>(json["cut_keys"], "cut_keys", "string");
  if (json.contains("allow_absent")) {
    spec.request.allow_absent = get<bool>(json["allow_absent"], "allow_absent", "true or false");
  }
  if (json.contains("hosts")) spec.host_of = get_list<int>(json["hosts"], "hosts", "host");
  return spec;
}

}  // namespace levada::cli
