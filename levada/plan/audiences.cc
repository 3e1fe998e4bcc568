#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>

#include "levada/base/assert.h"
#include "levada/base/error.h"
#include "levada/plan/needs.h"
#include "levada/plan/plan.h"

namespace levada {
namespace {

struct AudienceKey {
  int from = 0;
  int unit = 0;
  std::uint64_t needs = 0;
  bool operator==(const AudienceKey&) const = default;
};

struct AudienceKeyHash {
  std::size_t operator()(const AudienceKey& key) const {
    const auto pair = static_cast<std::uint64_t>(key.from) << 32 | static_cast<std::uint32_t>(key.unit);
    return (pair * 0x9E3779B97F4A7C15u ^ key.needs) * 0xC2B2AE3D27D4EB4Fu >> 16;
  }
};

std::vector<int> first_of_each_host(std::span<const int> host_of, int ranks) {
  std::unordered_map<int, int> first;
  std::vector<int> readers;
  readers.reserve(host_of.size());
  for (int rank = 0; rank < ranks; ++rank) {
    readers.push_back(first.try_emplace(host_of[static_cast<std::size_t>(rank)], rank).first->second);
  }
  return readers;
}

/// For each coordinate, chooses the first rank on the host that has the fewest readers so far.
std::vector<int> spread_over_hosts(const Mesh& mesh, std::span<const int> host_of) {
  std::vector<std::vector<int>> ranks_of(static_cast<std::size_t>(mesh.data_size()));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    ranks_of[static_cast<std::size_t>(mesh.data_coordinate(rank))].push_back(rank);
  }
  std::vector<int> readers(static_cast<std::size_t>(mesh.size()), 0);
  std::unordered_map<int, int> readers_on;
  for (const std::vector<int>& ranks : ranks_of) {
    const auto load = [&](int rank) { return readers_on[host_of[static_cast<std::size_t>(rank)]]; };
    const int reader = *std::ranges::min_element(ranks, {}, load);
    readers_on[host_of[static_cast<std::size_t>(reader)]] += 1;
    for (const int rank : ranks) readers[static_cast<std::size_t>(rank)] = reader;
  }
  return readers;
}

std::vector<int> first_at_each_coordinate(const Mesh& mesh, const std::vector<std::string>& axes) {
  std::set<std::string, std::less<>> named;
  for (const std::string& axis : axes) {
    const auto meant = mesh.axes_meant_by(axis);
    if (meant.empty() && !mesh.may_lack(axis)) {
      throw InvalidArgument(
          fmt::format("readers '{}' name an axis that the mesh '{}' does not have; name one of its axes, or dp for all "
                      "its data axes",
                      axis, mesh.to_string()));
    }
    named.insert(meant.begin(), meant.end());
  }
  AxisSpan span;
  for (const std::string& axis : named) span.append(mesh.axis_stride(axis), mesh.axis_size(axis));
  std::vector<int> readers;
  readers.reserve(static_cast<std::size_t>(mesh.size()));
  for (int rank = 0; rank < mesh.size(); ++rank) readers.push_back(span.first_rank(span.of(rank)));
  return readers;
}

}  // namespace

Readers Readers::parse(std::string_view text) {
  if (text == "one") return {Kind::one, {}};
  if (text == "all") return {Kind::all, {}};
  if (text == "host") return {Kind::host, {}};
  if (text == "spread") return {Kind::spread, {}};
  Readers readers{Kind::axes, {}};
  std::string_view rest = text;
  for (;;) {
    const auto comma = rest.find(',');
    const auto name = rest.substr(0, comma);
    if (!is_name(name)) {
      throw InvalidArgument(fmt::format(
          "readers '{:.60}': '{:.40}' is not an axis; use one, all, host, spread, or axes such as dp or dp,pp", text,
          name));
    }
    if (std::find(readers.axes.begin(), readers.axes.end(), name) != readers.axes.end()) {
      throw InvalidArgument(fmt::format("readers '{:.60}': {} appears twice; name each axis once", text, name));
    }
    readers.axes.emplace_back(name);
    if (comma == std::string_view::npos) return readers;
    rest.remove_prefix(comma + 1);
  }
}

std::string Readers::to_string() const {
  switch (kind) {
    case Kind::one: return "one";
    case Kind::all: return "all";
    case Kind::host: return "host";
    case Kind::spread: return "spread";
    case Kind::axes: break;
  }
  return fmt::format("{}", fmt::join(axes, ","));
}

std::vector<int> Readers::of(const Mesh& mesh, std::span<const int> host_of) const {
  const bool needs_hosts = kind == Kind::host || kind == Kind::spread;
  if (needs_hosts && host_of.size() != static_cast<std::size_t>(mesh.size())) {
    throw InvalidArgument(fmt::format("readers '{}' need the host of each of {} ranks, but only {} are known",
                                      to_string(), mesh.size(), host_of.size()));
  }
  if (kind == Kind::host) return first_of_each_host(host_of, mesh.size());
  if (kind == Kind::spread) return spread_over_hosts(mesh, host_of);
  if (kind == Kind::axes) return first_at_each_coordinate(mesh, axes);
  std::vector<int> readers(static_cast<std::size_t>(mesh.size()), 0);
  if (kind == Kind::all) std::iota(readers.begin(), readers.end(), 0);
  return readers;
}

std::vector<Audience> fan_out_audiences(const Layout& layout, const Mesh& mesh, const FanOutOptions& options) {
  const Needs needs(layout, mesh, options.divide);
  const std::vector<int> readers = options.readers.of(mesh, options.host_of);
  std::unordered_map<AudienceKey, std::size_t, AudienceKeyHash> index;
  std::vector<Audience> audiences;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const AudienceKey key{readers[static_cast<std::size_t>(rank)], needs.unit_of(rank), needs.class_of(rank)};
    const auto [entry, is_new] = index.try_emplace(key, audiences.size());
    if (is_new) audiences.push_back({key.from, {}, key.unit});
    audiences[entry->second].to.push_back(rank);
  }
  std::sort(audiences.begin(), audiences.end(), [](const Audience& a, const Audience& b) {
    return std::tuple(a.from, a.unit, a.to.front()) < std::tuple(b.from, b.unit, b.to.front());
  });
  LEVADA_ASSERT(std::accumulate(audiences.begin(), audiences.end(), std::size_t{0},
                                [](std::size_t sum, const Audience& each) { return sum + each.to.size(); }) ==
                    static_cast<std::size_t>(mesh.size()),
                "every rank is in one audience");
  return audiences;
}

std::span<const Audience> audiences_of(std::span<const Audience> audiences, int from) {
  const auto [first, last] = std::equal_range(audiences.begin(), audiences.end(), Audience{from, {}, 0},
                                              [](const Audience& a, const Audience& b) { return a.from < b.from; });
  return {first, last};
}

std::span<const Audience> audiences_of(std::span<const Audience> audiences, int from, int unit) {
  const auto before = [](const Audience& a, const Audience& b) {
    return std::pair(a.from, a.unit) < std::pair(b.from, b.unit);
  };
  const auto [first, last] = std::equal_range(audiences.begin(), audiences.end(), Audience{from, {}, unit}, before);
  return {first, last};
}

}  // namespace levada
