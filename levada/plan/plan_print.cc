#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "levada/base/bytes.h"
#include "levada/base/json.h"
#include "levada/plan/plan.h"
#include "levada/plan/text.h"

namespace levada {
namespace {

using Json = nlohmann::ordered_json;

std::string counted(std::size_t count, std::string_view singular, std::string_view plural) {
  return fmt::format("{} {}", count, count == 1 ? singular : plural);
}

std::uint64_t bytes_if_whole(const Plan& plan) {
  return bytes_of_batch(plan.fields) * static_cast<std::uint64_t>(plan.mesh.size());
}

std::string sums(const Plan& plan) {
  const auto by_rank = plan.bytes_by_rank();
  const auto [least, most] = std::minmax_element(by_rank.begin(), by_rank.end());
  const auto per_rank = *least == *most ? fmt::format("{} each", format_bytes(*most))
                                        : fmt::format("{} to {} each", format_bytes(*least), format_bytes(*most));
  std::size_t readers = 0;
  for (std::size_t i = 0; i < plan.audiences.size(); ++i) {
    if (i == 0 || plan.audiences[i].from != plan.audiences[i - 1].from) ++readers;
  }
  return fmt::format(
      "sent       {:>10}  in {} from {}\n"
      "delivered  {:>10}  to {}, {}: exactly what they need\n"
      "whole      {:>10}  if every rank received its whole batch\n"
      "peak       {:>10}  at a reader: its batches of a step and their messages\n",
      format_bytes(plan.bytes_sent()), counted(plan.audiences.size(), "message", "messages"),
      counted(readers, "reader", "readers"), format_bytes(plan.bytes_delivered()),
      counted(by_rank.size(), "rank", "ranks"), per_rank, format_bytes(bytes_if_whole(plan)),
      format_bytes(plan.peak_bytes()));
}

Json region_as_json(const Region& region) {
  Json dims = Json::array();
  for (const Ranges& ranges : region.dims()) {
    Json list = Json::array();
    for (const Range& range : ranges) list.push_back({range.begin, range.end});
    dims.push_back(std::move(list));
  }
  return dims;
}

Json shape_as_json(const Shape& shape) {
  return Json(std::vector<std::int64_t>(shape.begin(), shape.end()));
}

/// Returns the bytes sent or handed over from each reader to each rank.
Json edges_as_json(const Plan& plan) {
  const auto by_rank = plan.bytes_by_rank();
  Json edges = Json::array();
  for (const Audience& audience : plan.audiences) {
    for (const int rank : audience.to) {
      edges.push_back({{"from", audience.from}, {"to", rank}, {"bytes", by_rank[static_cast<std::size_t>(rank)]}});
    }
  }
  return edges;
}

}  // namespace

std::string Plan::to_table() const {
  TextTable table({"reader", "batch", "ranks", "field", "dtype", "part", "shape", "bytes"});
  for (std::size_t i = 0; i < audiences.size(); ++i) {
    const Audience& audience = audiences[i];
    const auto parts = moves_of(static_cast<int>(i));
    const auto from = fmt::format("{}", audience.from), unit = fmt::format("{}", audience.unit);
    if (parts.empty()) table.add({from, unit, rank_ranges(audience.to), "(nothing)", "", "", "", "0 B"});
    for (const Move& move : parts) {
      const bool is_first = &move == parts.data();
      const Field& field = fields[static_cast<std::size_t>(move.field)];
      const bool whole = move.region.covers(field.shape);
      table.add({is_first ? from : "", is_first ? unit : "", is_first ? rank_ranges(audience.to) : "", field.path,
                 field.is_tensor() ? field.dtype.name() : "value", whole ? "whole" : move.region.to_string(),
                 field.is_tensor() ? move.region.shape().to_string() : "", format_bytes(move.bytes)});
    }
  }
  return table.to_string({true, true, false, false, false, false, false, true}) + "\n" + sums(*this);
}

std::string Plan::to_json() const {
  Json json = {{"mesh", mesh.to_string()},
               {"ranks", mesh.size()},
               {"fields", Json::array()},
               {"audiences", Json::array()},
               {"moves", Json::array()}};
  for (const Field& field : fields) {
    json["fields"].push_back({{"path", field.path},
                              {"dtype", field.is_tensor() ? Json(field.dtype.name()) : Json(nullptr)},
                              {"shape", shape_as_json(field.shape)}});
  }
  for (const Audience& audience : audiences) {
    json["audiences"].push_back({{"from", audience.from}, {"to", audience.to}, {"unit", audience.unit}});
  }
  for (const Move& move : moves) {
    json["moves"].push_back({{"audience", move.audience},
                             {"field", move.field},
                             {"region", region_as_json(move.region)},
                             {"bytes", move.bytes}});
  }
  json["bytes_sent"] = bytes_sent();
  json["bytes_delivered"] = bytes_delivered();
  json["bytes_if_whole"] = bytes_if_whole(*this);
  json["edges"] = edges_as_json(*this);
  json["peak_bytes"] = peak_bytes();
  return json_text(json);
}

}  // namespace levada
