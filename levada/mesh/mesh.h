// The ranks of a job as named axes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/mesh/axis_span.h"

namespace levada {

/// What the ranks along an axis of this name do with batches. Data axes: dp, dp_replicate, dp_shard, fsdp, data, ddp.
/// Axes that share: tp, cp, pp, sp. Ranks along ep share batches in some programs and not in others: it is unknown.
enum class AxisRole { data, shared, unknown };
AxisRole role_of(std::string_view axis);
/// "data axes are dp, ...; axes that share data are tp, ...", for messages.
std::string describe_axis_roles();

/// Whether `text` can name an axis or a stage: letters, digits and '_', no digit first.
bool is_name(std::string_view text);

struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

/// Ranks 0..size()-1 laid out row-major over the axes: the last axis varies fastest. A value, never empty of ranks.
///
/// Ranks that differ along a data axis get different batches, all others share theirs. Several data axes together,
/// row-major, are one: the name "dp" stands for them in placements and readers.
class Mesh {
 public:
  using Names = std::vector<std::string>;

  /// One rank, no axes.
  Mesh() = default;
  /// `data_axes`: the axes along which batches differ; without it those that role_of() says. Throws InvalidArgument: an
  /// empty, ill-formed or repeated name, a size below 1, more than 2^31-1 ranks, a data axis that is not among `axes`.
  explicit Mesh(std::vector<Axis> axes, const std::optional<Names>& data_axes = {});
  /// "dp=2,tp=2"; "" is one rank. Throws InvalidArgument, naming the part that is wrong.
  static Mesh parse(std::string_view text, const std::optional<Names>& data_axes = {});
  /// Sorts `axes` as `order` says, which names them from the fastest to the slowest: "tp-cp-ep-dp-pp". "dp" stands
  /// there for all data axes that `order` does not name, in the order in which they are given. Throws InvalidArgument
  /// where `order` leaves out an axis or names one twice.
  static Mesh ordered(std::vector<Axis> axes, std::string_view order, const std::optional<Names>& data_axes = {});
  /// Megatron-LM's order, with sp beside cp.
  static constexpr std::string_view default_order = "tp-sp-cp-ep-dp-pp";

  int size() const { return size_; }
  const std::vector<Axis>& axes() const { return axes_; }
  /// In the order of axes().
  const Names& data_axes() const { return data_axes_; }
  /// Ranks along all data axes together.
  int data_size() const { return data_span_.size(); }
  /// Position of `rank` along all data axes together.
  /// Throws InvalidArgument for no such rank.
  int data_coordinate(int rank) const;
  const AxisSpan& data_span() const { return data_span_; }
  /// Axes of unknown role, where the data axes were not given: nothing says whether their ranks share batches.
  const Names& undecided_axes() const { return undecided_axes_; }

  /// The axes that a placement means by a name: all data axes by "dp", else the axis itself; none that the mesh lacks.
  Names axes_meant_by(std::string_view name) const;
  /// Where they lie in a rank's number.
  AxisSpan span(std::string_view name) const;
  /// Whether a placement may name an axis that the mesh lacks, and which then counts as one rank: one that shares data,
  /// or a data axis where the mesh does not divide data under another name.
  bool may_lack(std::string_view name) const;
  bool has_axis(std::string_view name) const;
  /// Ranks along an axis; 1 for one that the mesh does not have.
  int axis_size(std::string_view name) const;
  /// Ranks between neighbours along an axis; size() for one that the mesh does not have.
  int axis_stride(std::string_view name) const;

  /// Position of `rank` along an axis; 0 for one that the mesh does not have. Throws InvalidArgument for no such rank.
  int coordinate(int rank, std::string_view axis) const;
  /// One entry an axis.
  std::vector<int> coordinates(int rank) const;
  /// The inverse. Throws InvalidArgument out of range.
  int rank_at(const std::vector<int>& coordinates) const;
  /// The ranks that differ from `rank` at most along the axes named, ascending; axes that the mesh does not have count
  /// as size 1.
  std::vector<int> group(int rank, const std::vector<std::string>& axes) const;

  /// As parse() takes it; the data axes are not part of it.
  std::string to_string() const;
  /// "dp0 tp1": the coordinates of a rank for people; "rank 0" where there are no axes.
  std::string describe(int rank) const;
  bool operator==(const Mesh&) const = default;

 private:
  void check_rank(int rank) const;

  std::vector<Axis> axes_;
  Names data_axes_;
  Names undecided_axes_;
  AxisSpan data_span_;
  int size_ = 1;
};

}  // namespace levada
