// The placement of each field of a Tree on a mesh.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "levada/mesh/mesh.h"
#include "levada/mesh/placement.h"

namespace levada {

/// Returns whether `path` matches `pattern`, in which '*' matches any run of characters.
bool matches(std::string_view pattern, std::string_view path);

/// Placements by field. The first rule whose pattern matches a leaf's path applies to it. A leaf that no rule matches
/// follows `otherwise`, which by default sends it whole to every rank. A rule has at most one placement per axis;
/// placements on the same dimension apply in order, each within the part that the previous ones leave. A tensor must
/// have all dimensions that its rule cuts; `otherwise` cuts only dimensions that a tensor has. A plain value is never
/// cut, but Stages apply to it as well.
struct Layout {
  struct Rule {
    std::string pattern;
    std::vector<Placement> placements;
    bool required = true;  ///< whether a batch without a matching field is an error
    bool operator==(const Rule&) const = default;
  };
  std::string name = "custom";
  std::vector<Rule> rules;
  std::vector<Placement> otherwise;
  /// Named stages, as coordinates along the pipeline axis. "first" and "last" need no entry.
  std::map<std::string, std::vector<int>> stages;

  const std::vector<Placement>& placements_of(std::string_view path) const;
  bool operator==(const Layout&) const = default;

  /// Throws InvalidArgument if layout and mesh do not fit: an axis that the mesh lacks, unless Mesh::may_lack(); an
  /// axis of Mesh::undecided_axes() that no rule mentions; an undefined stage name, or a stage beyond the axis; two
  /// placements on one axis; two rules with the same pattern.
  void check(const Mesh& mesh) const;

  /// Returns one JSON object: {"name": "gpt", "fields": {"tokens": ["shard(dp,0)", ...]}, "optional":
  /// ["attention_mask"], "otherwise": [...], "stages": {"mtp": [1]}}. from_json() parses untrusted bytes and throws
  /// InvalidArgument with what is wrong and where.
  std::string to_json() const;
  static Layout from_json(std::string_view text);
};

namespace layouts {

struct GptOptions {
  bool attention_mask = false;       ///< whether the fields include a bool mask [batch, 1, sequence, sequence]
  bool broadcast_all_keys = false;   ///< whether every stage gets every field
  std::vector<int> mtp_stages = {};  ///< coordinates along pp of the stages that host multi-token prediction
};

/// Returns the layout of a GPT step's fields and the stages that need them, as in Megatron-LM. The first stage gets
/// tokens and position_ids (and attention_mask), the last one labels and loss_mask (and attention_mask), a stage that
/// hosts MTP all of them, and other middle stages none. dp, meaning all data axes, shards dim 0; cp divides the
/// sequence by zigzag (for the mask its rows, the queries); tp replicates. Without the `attention_mask` option, a batch
/// may still have one, as well as cu_seqlens and max_seqlen; every stage and cp coordinate then gets these whole. Other
/// fields go to every rank.
Layout gpt(const GptOptions& options = {});

/// Returns the layout that shards every field along dim 0 over all data axes and replicates it along all others.
Layout data_parallel();

}  // namespace layouts
}  // namespace levada
