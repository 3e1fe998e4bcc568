#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "levada/base/bytes.h"
#include "levada/plan/plan.h"

namespace levada {
namespace {

using Json = nlohmann::ordered_json;

/// How many numbers from `first` on have the same distance to the next.
std::size_t run_length(const std::vector<int>& ascending, std::size_t first) {
  std::size_t last = first + 1;
  while (last + 1 < ascending.size() &&
         ascending[last + 1] - ascending[last] == ascending[first + 1] - ascending[first]) {
    ++last;
  }
  return std::min(last + 1, ascending.size()) - first;
}

/// "0-7,16", "0-21/3" for every third; cut where it becomes long: "0-1,8-9,... (64 ranks)".
std::string as_ranges(const std::vector<int>& ascending) {
  constexpr std::size_t long_text = 32;
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    if (text.size() >= long_text) return fmt::format("{},... ({} ranks)", text, ascending.size());
    const std::size_t length = run_length(ascending, i);
    const int step = length > 1 ? ascending[i + 1] - ascending[i] : 1;
    const bool is_run = length >= (step == 1 ? 3 : 4);
    text += fmt::format("{}{}", text.empty() ? "" : ",", ascending[i]);
    if (is_run) text += fmt::format("-{}", ascending[i + length - 1]);
    if (is_run && step > 1) text += fmt::format("/{}", step);
    i += is_run ? length : 1;
  }
  return text;
}

std::string counted(std::size_t count, std::string_view singular, std::string_view plural) {
  return fmt::format("{} {}", count, count == 1 ? singular : plural);
}

/// Rows of cells, each column as wide as its widest.
class Table {
 public:
  static constexpr std::size_t columns = 8;
  using Row = std::array<std::string, columns>;

  explicit Table(Row head) { add(std::move(head)); }

  void add(Row row) {
    for (std::size_t i = 0; i < columns; ++i) widths_[i] = std::max(widths_[i], row[i].size());
    rows_.push_back(std::move(row));
  }

  /// `right`: columns of numbers.
  std::string to_string(const std::array<bool, columns>& right) const {
    std::string text;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      std::string line;
      for (std::size_t i = 0; i < columns; ++i) {
        const char* separator = i == 0 ? "" : "  ";
        line += right[i] ? fmt::format("{}{:>{}}", separator, rows_[row][i], widths_[i])
                         : fmt::format("{}{:<{}}", separator, rows_[row][i], widths_[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
      if (row == 0) text += std::string(width(), '-') + "\n";
    }
    return text;
  }

  std::size_t width() const {
    std::size_t width = 2 * (columns - 1);
    for (const std::size_t column : widths_) width += column;
    return width;
  }

 private:
  std::array<std::size_t, columns> widths_{};
  std::vector<Row> rows_;
};

std::uint64_t bytes_if_whole(const Plan& plan) {
  std::uint64_t batch = 0;
  for (const Field& field : plan.fields) {
    if (field.is_tensor()) batch += field.dtype.bytes(field.shape.element_count().value_or(0));
  }
  return batch * static_cast<std::uint64_t>(plan.mesh.size());
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
      "delivered  {:>10}  to {}, {}: what they need and nothing more\n"
      "whole      {:>10}  if every rank were given its batch whole\n"
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

/// What crosses, or is handed over, between each reader and each rank.
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
  Table table({"reader", "batch", "ranks", "field", "dtype", "part", "shape", "bytes"});
  for (std::size_t i = 0; i < audiences.size(); ++i) {
    const Audience& audience = audiences[i];
    const auto parts = moves_of(static_cast<int>(i));
    const auto from = fmt::format("{}", audience.from), unit = fmt::format("{}", audience.unit);
    if (parts.empty()) table.add({from, unit, as_ranges(audience.to), "(nothing)", "", "", "", "0 B"});
    for (const Move& move : parts) {
      const bool is_first = &move == parts.data();
      const Field& field = fields[static_cast<std::size_t>(move.field)];
      const bool whole = move.region.covers(field.shape);
      table.add({is_first ? from : "", is_first ? unit : "", is_first ? as_ranges(audience.to) : "", field.path,
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
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace levada
