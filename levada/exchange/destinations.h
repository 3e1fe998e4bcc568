// Who is to have which samples: what is asked of an exchange.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "levada/exchange/sample_directory.h"
#include "levada/mesh/mesh.h"

namespace levada {

/// All of these ranks are to have all of these samples. Ranks and ids may be none, stand twice, or be in several
/// destinations.
struct Destination {
  std::vector<int> ranks = {};
  std::vector<std::string> ids = {};
  SequencePart part = {};  ///< of the keys that are cut; others come whole
  bool operator==(const Destination&) const = default;
};

/// The same on all ranks that take part; the order of destinations, ranks, ids and keys does not matter.
struct ExchangeRequest {
  std::vector<Destination> destinations = {};
  std::vector<std::string> keys = {};      ///< at most 64
  std::vector<std::string> cut_keys = {};  ///< those of `keys` of which a destination with a part gets just that
  /// Whether keys may be absent for samples, some or all, which then come without them, and not at all where they have
  /// none; else that is an error.
  bool allow_absent = false;
};

/// How sequences are divided along the axis cp: not at all, in consecutive parts, or zigzag.
enum class CutAlongCp : std::uint8_t { whole, consecutive, zigzag };

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

/// ids[d] goes to all ranks with coordinate d along the data axes, whatever their tensor and pipeline coordinates;
/// along cp whole or cut. One destination a coordinate along them (and cp, if cut). Throws InvalidArgument unless there
/// is one list of ids a coordinate, and one rank a place of the mesh; and for a mesh with undecided_axes().
std::vector<Destination> destinations_of(const ModelRanks& model, std::vector<std::vector<std::string>> ids,
                                         CutAlongCp cut = CutAlongCp::whole);

}  // namespace levada
