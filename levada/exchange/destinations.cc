#include "levada/exchange/destinations.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

void check_model(const ModelRanks& model) {
  if (const auto undecided = model.mesh.undecided_axes(); !undecided.empty()) {
    throw InvalidArgument(
        fmt::format("axis {} of the mesh '{}' may divide samples or share them, and nothing says which ({}); give the "
                    "mesh data_axes",
                    undecided.front(), model.mesh.to_string(), describe_axis_roles()));
  }
  if (model.ranks.size() != static_cast<std::size_t>(model.mesh.size())) {
    throw InvalidArgument(fmt::format("mesh {} has {} ranks, but {} were given", model.mesh.to_string(),
                                      model.mesh.size(), model.ranks.size()));
  }
  auto ranks = model.ranks;
  std::ranges::sort(ranks);
  const auto twice = std::ranges::adjacent_find(ranks);
  if (ranks.front() < 0) throw InvalidArgument(fmt::format("rank {} cannot be in a mesh", ranks.front()));
  if (twice != ranks.end()) throw InvalidArgument(fmt::format("rank {} appears twice in one mesh", *twice));
}

void check_sequences(const Mesh& mesh, const Placement& sequences) {
  const auto* shard = std::get_if<Shard>(&sequences);
  const auto* zigzag = std::get_if<Zigzag>(&sequences);
  const bool is_whole = std::holds_alternative<Replicate>(sequences);
  const bool cuts_tokens = (shard != nullptr && shard->dim == 1) || (zigzag != nullptr && zigzag->dim == 1);
  const bool along_data = std::ranges::count(mesh.data_axes(), axis_of(sequences)) > 0;
  if (is_whole || (cuts_tokens && !along_data)) return;
  throw InvalidArgument(
      fmt::format("sequences cannot be placed by {}: only their tokens, dimension 1, can be cut, and not "
                  "along an axis that divides samples",
                  to_string(sequences)));
}

bool is_head(const Mesh& mesh, int rank) {
  for (const Axis& axis : mesh.axes()) {
    if (std::find(mesh.data_axes().begin(), mesh.data_axes().end(), axis.name) != mesh.data_axes().end()) continue;
    if (mesh.coordinate(rank, axis.name) != (axis.name == "pp" ? axis.size - 1 : 0)) return false;
  }
  return true;
}

}  // namespace

Placement sequence_placement(std::string_view name) {
  if (name == "whole") return Replicate{"cp"};
  if (name == "consecutive") return Shard{"cp", 1};
  if (name == "zigzag") return Zigzag{"cp", 1};
  throw InvalidArgument(fmt::format("sequences must be whole, consecutive or zigzag, got \"{}\"", cut_text(name, 40)));
}

ModelRanks ModelRanks::from(Mesh mesh, int first) {
  ModelRanks model{std::move(mesh), {}};
  model.ranks.resize(static_cast<std::size_t>(model.mesh.size()));
  std::iota(model.ranks.begin(), model.ranks.end(), first);
  return model;
}

std::vector<int> data_heads(const ModelRanks& model) {
  check_model(model);
  std::vector<int> heads(static_cast<std::size_t>(model.mesh.data_size()));
  for (int rank = 0; rank < model.mesh.size(); ++rank) {
    if (!is_head(model.mesh, rank)) continue;
    heads[static_cast<std::size_t>(model.mesh.data_coordinate(rank))] = model.ranks[static_cast<std::size_t>(rank)];
  }
  return heads;
}

std::vector<Destination> destinations_of(const ModelRanks& model, std::vector<std::vector<std::string>> ids,
                                         const Placement& sequences) {
  check_model(model);
  const Mesh& mesh = model.mesh;
  check_sequences(mesh, sequences);
  const auto groups = static_cast<std::size_t>(mesh.data_size());
  if (ids.size() != groups) {
    throw InvalidArgument(
        fmt::format("{} lists of ids were given for the {} coordinates along the data axes of mesh {}", ids.size(),
                    groups, mesh.to_string()));
  }
  const std::string_view axis = axis_of(sequences);
  const int parts = std::holds_alternative<Replicate>(sequences) ? 1 : mesh.axis_size(axis);
  if (parts > UINT16_MAX) throw InvalidArgument(fmt::format("sequences cannot be cut into {} parts", parts));
  std::vector<Destination> destinations(groups * static_cast<std::size_t>(parts));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int part = parts == 1 ? 0 : mesh.coordinate(rank, axis);
    auto& destination = destinations[static_cast<std::size_t>(mesh.data_coordinate(rank) * parts + part)];
    destination.ranks.push_back(model.ranks[static_cast<std::size_t>(rank)]);
    destination.part = {static_cast<std::uint16_t>(part), static_cast<std::uint16_t>(parts),
                        parts > 1 && std::holds_alternative<Zigzag>(sequences)};
  }
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    const std::size_t group = i / static_cast<std::size_t>(parts);
    const bool last = (i + 1) % static_cast<std::size_t>(parts) == 0;
    destinations[i].ids = last ? std::move(ids[group]) : ids[group];
  }
  return destinations;
}

}  // namespace levada
