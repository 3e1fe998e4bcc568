// The request of an exchange: which ranks receive which samples.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levada/exchange/sample_directory.h"
#include "levada/mesh/mesh.h"
#include "levada/mesh/placement.h"

namespace levada {

/// All of these ranks receive all of these samples. Ranks and ids may be empty, repeated, or in several destinations.
struct Destination {
  std::vector<int> ranks = {};
  std::vector<std::string> ids = {};
  SequencePart part = {};  ///< of the keys that are cut; other keys are sent whole
  bool operator==(const Destination&) const = default;
};

/// The same on all ranks that take part; the order of destinations, ranks, ids and keys does not matter.
struct ExchangeRequest {
  std::vector<Destination> destinations = {};
  std::vector<std::string> keys = {};      ///< at most 64
  std::vector<std::string> cut_keys = {};  ///< those of `keys` of which a destination with a part gets only the part
  /// Whether samples may lack some or all keys. They then arrive without these, and not at all if they have none. If
  /// false, a missing key is an error.
  bool allow_absent = false;
};

/// How sequences lie along the axis cp, by name: "whole" is Replicate, "consecutive" Shard, "zigzag" Zigzag. Dimension
/// 0 is that of samples, 1 that of their tokens. Throws InvalidArgument for another name.
Placement sequence_placement(std::string_view name);

/// The ranks of a model within a job: mesh rank i is rank ranks[i] of the job.
struct ModelRanks {
  Mesh mesh;
  std::vector<int> ranks;

  /// Ranks first, first+1, ... of the job.
  static ModelRanks from(Mesh mesh, int first = 0);
};

/// Data-parallel heads: for each coordinate along the data axes the rank that gives out what the group has made: tensor
/// and context coordinate 0 in the last pipeline stage; 0 along every other axis. Throws InvalidArgument for a mesh
/// with undecided_axes().
std::vector<int> data_heads(const ModelRanks& model);

/// ids[d] goes to all ranks with coordinate d along the data axes, whatever their tensor and pipeline coordinates.
/// `sequences`: where the keys that are cut lie along one other axis; parts are as equal as whole tokens allow. One
/// destination a coordinate along the data axes (and that axis, if it cuts). Throws InvalidArgument unless there is one
/// list of ids a coordinate, and one rank a place of the mesh; for a mesh with undecided_axes(); and for a placement
/// that is along a data axis, of another dimension than 1, or Stages.
std::vector<Destination> destinations_of(const ModelRanks& model, std::vector<std::vector<std::string>> ids,
                                         const Placement& sequences = Replicate{"cp"});

}  // namespace levada
