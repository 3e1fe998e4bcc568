// How one field lies on one axis of a mesh.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace levada {

/// Dimension `dim` is cut into as many equal parts as the axis has ranks; coordinate c holds part c.
struct Shard {
  std::string axis;
  int dim = 0;
  bool operator==(const Shard&) const = default;
};

/// Every rank along the axis holds all of it. The placement on each axis that a field does not mention.
struct Replicate {
  std::string axis;
  bool operator==(const Replicate&) const = default;
};

/// The balanced order of context parallelism for causal attention: dimension `dim` is cut into 2n equal chunks, n the
/// size of the axis; coordinate c holds chunks c and 2n-1-c, in this order.
struct Zigzag {
  std::string axis;
  int dim = 1;
  bool operator==(const Zigzag&) const = default;
};

/// Only the stages named along a pipeline axis hold it: "first", "last", and names that the Layout defines. No names:
/// no stage does, unless there is but one (a pipeline of one stage needs everything).
struct Stages {
  std::string axis;
  std::vector<std::string> names;
  bool operator==(const Stages&) const = default;
};

using Placement = std::variant<Shard, Replicate, Zigzag, Stages>;

/// "shard(dp,0)", "replicate(tp)", "zigzag(cp,1)", "stages(pp,first,last)".
std::string to_string(const Placement& placement);
/// The inverse. Throws InvalidArgument.
Placement parse_placement(std::string_view text);
std::string_view axis_of(const Placement& placement);

}  // namespace levada
