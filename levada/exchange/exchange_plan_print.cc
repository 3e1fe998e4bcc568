#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "levada/base/json.h"
#include "levada/exchange/exchange_plan.h"
#include "levada/plan/text.h"

namespace levada {
namespace {

using Json = nlohmann::ordered_json;

/// The contents of a multicast, each listed once.
struct MulticastContents {
  std::set<std::string> keys;
  std::set<SequencePart> parts;
  std::vector<std::string> ids;

  MulticastContents(const ExchangePlan& plan, const Multicast& multicast) {
    std::uint32_t last = UINT32_MAX;
    std::uint64_t all_keys = 0;
    for (const ExchangeItem& item : multicast.items) {
      all_keys |= item.keys;
      parts.insert(plan.parts()[item.part]);
      if (item.sample != last) ids.emplace_back(plan.samples().id(last = item.sample));
    }
    for_each_key(all_keys, [&](std::size_t k) { keys.insert(plan.samples().keys()[plan.keys()[k]].name); });
  }
  std::vector<std::string> part_texts() const {
    std::vector<std::string> texts;
    for (const SequencePart& part : parts) texts.push_back(part.to_string());
    return texts;
  }
};

std::string counted(std::uint64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

/// Returns the first entries, followed by "..." if there are more.
std::string shortened(const std::vector<std::string>& texts) {
  constexpr std::size_t max_shown = 4;
  const bool more = texts.size() > max_shown;
  return fmt::format("{}{}", fmt::join(texts.begin(), texts.begin() + (more ? max_shown : texts.size()), ", "),
                     more ? ", ..." : "");
}

std::string edges_as_table(const std::vector<ExchangePlan::Edge>& edges) {
  constexpr std::size_t max_rows = 50;
  TextTable table({"from", "to", "bytes"});
  for (std::size_t i = 0; i < std::min(edges.size(), max_rows); ++i) {
    const auto& [from, to, bytes] = edges[i];
    table.add({fmt::format("{}", from), fmt::format("{}", to), format_bytes(bytes)});
  }
  std::string text = table.to_string({true, true, true});
  if (edges.size() > max_rows) text += fmt::format("... and {} more edges\n", edges.size() - max_rows);
  return text;
}

}  // namespace

std::string ExchangePlan::to_table() const {
  constexpr std::size_t max_rows = 200;
  TextTable table({"from", "to", "samples", "keys", "part", "bytes"});
  for (std::size_t i = 0; i < std::min(size(), max_rows); ++i) {
    const Multicast multicast = (*this)[i];
    const MulticastContents contents(*this, multicast);
    table.add({fmt::format("{}", multicast.from), rank_ranges(multicast.to), fmt::format("{}", contents.ids.size()),
               shortened({contents.keys.begin(), contents.keys.end()}), shortened(contents.part_texts()),
               format_bytes(multicast.bytes)});
  }
  std::string text = table.to_string({true, false, true, false, false, true});
  if (size() > max_rows) text += fmt::format("... and {} more multicasts\n", size() - max_rows);
  if (size() > 0) text += "\n" + edges_as_table(edges());
  const Load max_load = busiest();
  text += fmt::format(
      "\nmoved      {:>10}  in {}\n"
      "minimum    {:>10}  of any plan: each missing item once\n"
      "delivered  {:>10}  among {}\n",
      format_bytes(moved_bytes()), counted(size(), "multicast"), format_bytes(lower_bound_bytes()),
      format_bytes(delivered_bytes()), counted(ranks().size(), "rank"));
  if (max_load.rank >= 0)
    text += fmt::format("busiest    {:>10}  sent by rank {}\n", format_bytes(max_load.bytes), max_load.rank);
  return text;
}

std::string ExchangePlan::to_json(bool with_ids) const {
  Json json = {{"multicasts", Json::array()}};
  for (std::size_t i = 0; i < size(); ++i) {
    const Multicast multicast = (*this)[i];
    const MulticastContents contents(*this, multicast);
    Json row = {{"from", multicast.from},         {"to", std::vector<int>(multicast.to.begin(), multicast.to.end())},
                {"samples", contents.ids.size()}, {"keys", contents.keys},
                {"parts", contents.part_texts()}, {"bytes", multicast.bytes}};
    if (with_ids) row["ids"] = contents.ids;
    json["multicasts"].push_back(std::move(row));
  }
  const Load max_load = busiest();
  json["moved_bytes"] = moved_bytes();
  json["lower_bound_bytes"] = lower_bound_bytes();
  json["delivered_bytes"] = delivered_bytes();
  json["busiest"] = {{"rank", max_load.rank < 0 ? Json(nullptr) : Json(max_load.rank)}, {"bytes", max_load.bytes}};
  json["edges"] = Json::array();
  for (const Edge& edge : edges())
    json["edges"].push_back({{"from", edge.from}, {"to", edge.to}, {"bytes", edge.bytes}});
  return json_text(json);
}

}  // namespace levada
