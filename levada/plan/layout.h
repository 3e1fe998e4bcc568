// For each field of a Tree, where it is wanted on a mesh.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "levada/mesh/mesh.h"
#include "levada/mesh/placement.h"

namespace levada {

/// Whether `path` fits `pattern`, in which '*' stands for any run of characters.
bool matches(std::string_view pattern, std::string_view path);

/// Placements by field. The first rule whose pattern matches a leaf's path holds for it; a leaf that no rule matches
/// follows `otherwise`, which says nothing at first: whole, to every rank. At most one placement an axis and rule;
/// those on one dimension apply in order, each within what the one before has left. A tensor must have the dimensions
/// that its rule cuts; `otherwise` cuts only those that a tensor has. A plain value is never cut; Stages hold for it
/// too.
struct Layout {
  struct Rule {
    std::string pattern;
    std::vector<Placement> placements;
    bool required = true;  ///< whether a batch without any such field is an error
    bool operator==(const Rule&) const = default;
  };
  std::string name = "custom";
  std::vector<Rule> rules;
  std::vector<Placement> otherwise;
  /// Stages by name, as coordinates along the pipeline axis. "first" and "last" need no entry.
  std::map<std::string, std::vector<int>> stages;

  const std::vector<Placement>& placements_of(std::string_view path) const;
  bool operator==(const Layout&) const = default;

  /// Throws InvalidArgument where the layout and the mesh do not fit: an axis that the mesh lacks, unless
  /// Mesh::may_lack(); a mesh axis that no rule mentions and of which nothing says whether it divides data; a stage
  /// name that is not defined or a stage beyond the axis; two placements on one axis; two rules for one pattern.
  void check(const Mesh& mesh) const;

  /// One JSON object: {"name": "gpt", "fields": {"tokens": ["shard(dp,0)", ...]}, "optional": ["attention_mask"],
  /// "otherwise": [...], "stages": {"mtp": [1]}}. from_json() reads bytes that may lie: InvalidArgument, saying what
  /// is wrong and where.
  std::string to_json() const;
  static Layout from_json(std::string_view text);
};

namespace layouts {

struct GptOptions {
  bool attention_mask = false;       ///< whether a bool mask [batch, 1, sequence, sequence] is among the fields
  bool broadcast_all_keys = false;   ///< every stage gets every field
  std::vector<int> mtp_stages = {};  ///< coordinates along pp of the stages that host multi-token prediction
};

/// The fields of a GPT step and the stages that need them, by the rules of Megatron-LM: the first stage tokens,
/// position_ids (and attention_mask); the last labels, loss_mask (and attention_mask); a stage that hosts MTP all;
/// other middle stages none. dp, which is all data axes, shards dim 0, cp zigzags the sequence (of the mask: its rows,
/// the queries), tp replicates. Without `attention_mask` a batch may still have one, and cu_seqlens and max_seqlen,
/// which every stage and cp coordinate gets whole. Other fields go to every rank.
Layout gpt(const GptOptions& options = {});

/// Every field sharded along dim 0 over all data axes and replicated along all else.
Layout data_parallel();

}  // namespace layouts
}  // namespace levada
