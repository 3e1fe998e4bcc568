// The placement of one field along one axis of a mesh.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace levada {

/// Divides dimension `dim` into as many equal parts as the axis has ranks. Coordinate c holds part c.
struct Shard {
  std::string axis;
  int dim = 0;
  bool operator==(const Shard&) const = default;
};

/// Every rank along the axis holds the whole field. The default for axes without a placement.
struct Replicate {
  std::string axis;
  bool operator==(const Replicate&) const = default;
};

/// The load-balanced order of context parallelism for causal attention. With n ranks along the axis, divides dimension
/// `dim` into 2n equal chunks. Coordinate c holds chunks c and 2n-1-c, in this order.
struct Zigzag {
  std::string axis;
  int dim = 1;
  bool operator==(const Zigzag&) const = default;
};

/// Only the named stages along a pipeline axis hold the field. Names are "first", "last" and those that the Layout
/// defines. Without names, no stage holds it, unless there is only one: a pipeline of one stage needs everything.
struct Stages {
  std::string axis;
  std::vector<std::string> names;
  bool operator==(const Stages&) const = default;
};

using Placement = std::variant<Shard, Replicate, Zigzag, Stages>;

/// Returns "shard(dp,0)", "replicate(tp)", "zigzag(cp,1)" or "stages(pp,first,last)".
std::string to_string(const Placement& placement);
/// The inverse of to_string(). Throws InvalidArgument.
Placement parse_placement(std::string_view text);
std::string_view axis_of(const Placement& placement);

}  // namespace levada
