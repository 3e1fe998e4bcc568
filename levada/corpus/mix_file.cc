#include "levada/corpus/mix_file.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/base/text.h"
#include "levada/base/urls.h"
#include "levada/corpus/paths.h"
#include "levada/order/mix.h"

namespace levada {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t max_mix_bytes = std::uint64_t{16} << 20;
constexpr std::size_t max_shown = 100;  ///< bytes of a key or value in a message

/// Throws the InvalidArgument for an error at a place in the file.
[[noreturn]] void fail(const std::string& where, std::string_view what) {
  throw InvalidArgument(fmt::format("{}: {}", where, what));
}

void expect_object(const Json& json, const std::string& where, std::initializer_list<std::string_view> known) {
  if (!json.is_object()) fail(where, "it must be an object");
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    fail(where, fmt::format("unknown key \"{}\"; the keys are {}", cut_text(printable(key), max_shown),
                            fmt::join(known, ", ")));
  }
}

std::string string_at(const Json& json, const char* key, const std::string& where) {
  if (!json.contains(key)) return {};
  if (!json[key].is_string()) fail(where, fmt::format("\"{}\" must be a string", key));
  return json[key];
}

std::optional<std::int64_t> count_at(const Json& json, const char* key, const std::string& where) {
  if (!json.contains(key)) return std::nullopt;
  const auto& value = json[key];
  if (!value.is_number_integer() || value < 1 || value > std::int64_t{1} << 62) {
    fail(where, fmt::format("\"{}\" is {}; it must be a whole number above zero", key, value.dump()));
  }
  return value.get<std::int64_t>();
}

std::vector<std::string> paths_at(const Json& json, const std::string& where) {
  if (!json.contains("path")) fail(where, "\"path\" is missing");
  const auto& value = json["path"];
  std::vector<std::string> paths;
  for (const auto& path : value.is_array() ? value : Json::array({value})) {
    if (!path.is_string() || path.get<std::string>().empty()) fail(where, "\"path\" must be a path or a list of paths");
    paths.push_back(path);
  }
  if (paths.empty()) fail(where, "\"path\" is an empty list");
  return paths;
}

CorpusSource source_of(const Json& json, const std::string& where, const std::filesystem::path& folder) {
  expect_object(json, where, {"path", "weight", "name", "max_samples", "max_tokens"});
  CorpusSource source{.name = string_at(json, "name", where), .paths = paths_at(json, where)};
  if (source.name.empty()) source.name = shown_url(source.paths.front());
  for (auto& path : source.paths) {
    if (!is_url(path)) path = path_in_folder(folder.string(), path);
  }
  if (!json.contains("weight")) fail(where, "\"weight\" is missing");
  if (!json["weight"].is_number()) fail(where, "\"weight\" must be a number");
  source.weight = json["weight"];
  source.max_samples = count_at(json, "max_samples", where);
  source.max_tokens = count_at(json, "max_tokens", where);
  return source;
}

CorpusMix::By by_of(const Json& json, const std::string& where) {
  if (!json.contains("by")) return CorpusMix::By::samples;
  const auto by = string_at(json, "by", where);
  if (by == "tokens") return CorpusMix::By::tokens;
  if (by == "samples") return CorpusMix::By::samples;
  fail(where, fmt::format("\"by\" is \"{}\"; it must be samples or tokens", cut_text(printable(by), max_shown)));
}

std::string content_of(const File& file) {
  const auto size = file.identity().size;
  if (size > max_mix_bytes) throw InvalidArgument(fmt::format("{} is too large for the JSON of a mix", file.path()));
  std::string content(size, '\0');
  content.resize(read_fully(file, 0, content));
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (content.starts_with(byte_order_mark)) content.erase(0, byte_order_mark.size());
  return content;
}

void check(const CorpusSource& source) {
  const auto name = printable(source.name);
  if (source.paths.empty()) throw InvalidArgument(fmt::format("the source {} has no files", name));
  for (const auto& path : source.paths) {
    if (!is_mix_file(path)) continue;
    throw InvalidArgument(fmt::format("the source {} is {}, a mix, and mixes do not nest: name its files instead", name,
                                      printable(path)));
  }
  if (!std::isfinite(source.weight) || source.weight <= 0) {
    throw InvalidArgument(fmt::format("the weight of {} is {}; it must be a number above zero", name, source.weight));
  }
  for (const auto& cap : {source.max_samples, source.max_tokens}) {
    if (!cap || (*cap >= 1 && *cap <= Mix::max_samples)) continue;
    throw InvalidArgument(
        fmt::format("the source {} may give at most {}; that must be 1 to {}", name, *cap, Mix::max_samples));
  }
}

}  // namespace

bool is_mix_file(const std::string& path) {
  return path.ends_with(".json") && leading_json_lines(path) == 0;
}

CorpusMix read_mix_file(const std::string& path, const std::function<std::unique_ptr<File>(const std::string&)>& open) {
  const auto content = content_of(*open(path)), shown = printable(path);
  constexpr int max_depth = 8;
  const auto json = [&] {
    try {
      return parse_json(content, max_depth, shown);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}; a .json is read as a mix, and JSON Lines are named .jsonl", error.what()));
    }
  }();
  if (json.is_array()) fail(shown, "it is a list; a .json of data has one object per line, and a mix is an object");
  if (json.is_object() && !json.contains("sources")) {
    fail(shown, "\"sources\" is missing, which a mix requires; a .json of data has one object per line");
  }
  expect_object(json, shown, {"sources", "by"});
  if (!json["sources"].is_array()) fail(shown, "\"sources\" must be a list");
  CorpusMix mix;
  mix.by = by_of(json, shown);
  for (const auto& source : json["sources"]) {
    const auto where = fmt::format("{}: sources[{}]", shown, mix.sources.size());
    mix.sources.push_back(source_of(source, where, std::filesystem::path(path).parent_path()));
  }
  if (mix.sources.empty()) fail(shown, "\"sources\" is an empty list");
  return mix;
}

void check(const CorpusMix& mix) {
  if (mix.sources.empty()) throw InvalidArgument("a corpus needs a source");
  for (const auto& source : mix.sources) check(source);
}

}  // namespace levada
