// The request of an exchange: which ranks receive which samples.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levada/exchange/sample_directory.h"
#include "levada/mesh/mesh.h"
#include "levada/mesh/placement.h"

namespace levada {

/// Samples, and the ranks that each receive all of them. Ranks and ids may be empty, may repeat, and may occur in
/// several destinations.
struct Destination {
  std::vector<int> ranks = {};
  std::vector<std::string> ids = {};
  SequencePart part = {};  ///< part of the keys that are cut; other keys are sent whole
  bool operator==(const Destination&) const = default;
};

/// An exchange's request, which must be the same on all participating ranks. The order of destinations, ranks, ids and
/// keys does not matter.
struct ExchangeRequest {
  std::vector<Destination> destinations = {};
  std::vector<std::string> keys = {};      ///< at most 64
  std::vector<std::string> cut_keys = {};  ///< subset of `keys` that is cut: a destination receives only its part
  /// Whether samples may lack some or all keys. A sample arrives without the keys that it lacks, and not at all if it
  /// lacks all of them. If false, a missing key is an error.
  bool allow_absent = false;
};

/// Returns how sequences are placed along axis cp, by name: "whole" is Replicate, "consecutive" Shard, "zigzag" Zigzag.
/// Dimension 0 is the samples, dimension 1 their tokens. Throws InvalidArgument for any other name.
Placement sequence_placement(std::string_view name);

/// The ranks of a model within a job: rank i of the mesh is rank ranks[i] of the job.
struct ModelRanks {
  Mesh mesh;
  std::vector<int> ranks;

  /// Returns the model on ranks first, first+1, ... of the job.
  static ModelRanks from(Mesh mesh, int first = 0);
};

/// Returns the data-parallel heads: for each coordinate along the data axes, the rank that outputs its group's samples.
/// That rank is in the last pipeline stage and has coordinate 0 along every other axis. Throws InvalidArgument for a
/// mesh with undecided_axes().
std::vector<int> data_heads(const ModelRanks& model);

/// Returns destinations that send ids[d] to all ranks with coordinate d along the data axes, regardless of their tensor
/// and pipeline coordinates. `sequences` places the cut keys along one other axis; parts are as equal as whole tokens
/// allow. There is one destination per coordinate along the data axes (and along the axis of `sequences`, if it cuts).
/// Throws InvalidArgument unless there is one list of ids per coordinate and one rank per position of the mesh; for a
/// mesh with undecided_axes(); and for a placement along a data axis, of a dimension other than 1, or Stages.
std::vector<Destination> destinations_of(const ModelRanks& model, std::vector<std::vector<std::string>> ids,
                                         const Placement& sequences = Replicate{"cp"});

}  // namespace levada
