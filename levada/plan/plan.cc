#include "levada/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "levada/base/assert.h"
#include "levada/base/enum_names.h"
#include "levada/base/error.h"
#include "levada/plan/needs.h"

namespace levada {
namespace {

constexpr EnumName<Divide> divide_names[] = {{"deal", Divide::deal}, {"split", Divide::split}};

std::string list_of_paths(const std::vector<Field>& fields) {
  constexpr std::size_t max_paths = 12;
  std::vector<std::string_view> paths;
  for (const Field& field : fields) {
    if (paths.size() < max_paths) paths.push_back(field.path);
  }
  return fmt::format("{}{}", fields.empty() ? "nothing" : fmt::format("{}", fmt::join(paths, ", ")),
                     fields.size() > max_paths ? ", ..." : "");
}

void check_required(const std::vector<Field>& fields, const Layout& layout) {
  for (const Layout::Rule& rule : layout.rules) {
    const auto fits = [&](const Field& field) { return matches(rule.pattern, field.path); };
    if (!rule.required || std::any_of(fields.begin(), fields.end(), fits)) continue;
    throw InvalidArgument(fmt::format("the batch has no field {}, which layout {:.40} requires; it has {}",
                                      rule.pattern, layout.name, list_of_paths(fields)));
  }
}

std::size_t rule_of(std::string_view path, const Layout& layout) {
  std::size_t rule = 0;
  while (rule < layout.rules.size() && !matches(layout.rules[rule].pattern, path)) ++rule;
  return rule;
}

/// Returns whether two parts of a tensor have a common element.
bool overlap(const Region& a, const Region& b) {
  const auto meet = [](const Ranges& of_a, const Ranges& of_b) {
    return std::ranges::any_of(of_a, [&](const Range& one) {
      return std::ranges::any_of(of_b,
                                 [&](const Range& other) { return one.begin < other.end && other.begin < one.end; });
    });
  };
  return std::ranges::equal(a.dims(), b.dims(), meet);
}

/// The cuts of a rule as they apply to one field, and the resulting parts, each computed once.
class FieldParts {
 public:
  FieldParts(const Field& field, const Layout& layout, const Needs& needs, const FanOutOptions& options)
      : field_(field),
        rule_(rule_of(field.path, layout)),
        short_samples_(options.short_samples),
        part_samples_(options.part_samples) {
    if (!field.shape.element_count()) {
      throw InvalidArgument(fmt::format("{} has the invalid shape {}", field.path, field.shape.to_string()));
    }
    const bool is_otherwise = rule_ == layout.rules.size();
    if (field.is_tensor()) {
      for (const Cut& cut : needs.cuts(rule_)) {
        if (is_otherwise && cut.dim >= field.shape.rank()) continue;
        cuts_.push_back(cut);
      }
    }
    check_cuts();
    std::size_t parts = 1;
    for (const Cut& cut : cuts_) parts *= static_cast<std::size_t>(cut.axis.size());
    parts_.resize(parts);
  }

  std::size_t rule() const { return rule_; }

  /// Returns whether no element is in two of the parts computed so far.
  bool are_apart() const {
    std::vector<const Region*> made;
    for (const auto& part : parts_) {
      if (part && part->region.element_count() > 0) made.push_back(&part->region);
    }
    constexpr std::size_t max_compared = 64;  // only this many are compared pairwise
    made.resize(std::min(made.size(), max_compared));
    for (std::size_t i = 0; i < made.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (overlap(*made[i], *made[j])) return false;
      }
    }
    return true;
  }

  Move move_to(int rank, int field, int audience) {
    std::size_t number = 0;
    for (const Cut& cut : cuts_) {
      number = number * static_cast<std::size_t>(cut.axis.size()) + static_cast<std::size_t>(cut.axis.of(rank));
    }
    auto& part = parts_[number];
    if (!part) part = part_of(rank);
    return {field, audience, part->region, part->bytes};
  }

 private:
  struct Part {
    Region region;
    std::uint64_t bytes = 0;
  };

  void check_cuts() {
    if (!cuts_.empty() && !field_.dtype.is_byte_sized()) {
      throw InvalidArgument(fmt::format("{} is {}, whose elements do not begin on bytes, so that {} cannot cut it; {}",
                                        field_.path, field_.dtype.name(), to_string(cuts_.front().placement),
                                        "replicate it"));
    }
    Shape left = field_.shape;
    std::int64_t last_share = 0;  // for a short batch: the samples in the part that is neither full nor empty
    for (const Cut& cut : cuts_) {
      if (is_short(cut)) {
        const std::int64_t parts_so_far = field_.shape[0] / left[0];
        if (part_samples_ % parts_so_far != 0) throw_indivisible(cut, left[0]);
        full_share_ = part_samples_ / parts_so_far;
        LEVADA_ASSERT(left[0] <= full_share_ * cut.axis.size(), "a short batch has room in its full parts");
        last_share = left[0] % full_share_;
        left[0] = std::min(left[0], full_share_);
        continue;
      }
      if (cut.zigzag && field_.segments) {
        check_segments(cut);
        continue;
      }
      if (cut.dim >= left.rank()) {
        throw InvalidArgument(
            fmt::format("{} has {} dimension(s), so that {} cannot cut it along dim {}; give it a "
                        "rule of its own in the layout",
                        field_.path, left.rank(), to_string(cut.placement), cut.dim));
      }
      if (left[cut.dim] % cut.divisor() != 0) throw_indivisible(cut, left[cut.dim]);
      left[cut.dim] /= cut.axis.size();
      if (cut.dim != 0) continue;
      if (last_share % cut.divisor() != 0) throw_indivisible(cut, last_share);
      last_share /= cut.axis.size();
    }
  }

  void check_segments(const Cut& cut) const {
    if (!field_.segments.differs_from.empty()) {
      throw InvalidArgument(fmt::format(
          "{} and {} differ, so that {} has two ways to divide {}; keep one of them, or give {} a rule of its "
          "own in the layout",
          field_.segments.path, field_.segments.differs_from, to_string(cut.placement), field_.path, field_.path));
    }
    const Segments& segments = *field_.segments.boundaries;
    const auto& shape = field_.shape;
    const auto is_alone = [&] {
      return std::ranges::none_of(cuts_, [&](const Cut& other) { return other.dim == cut.dim && &other != &cut; });
    };
    const auto has_rows = [&] {
      return cut.dim == 0 ? segments.rows == 1
                          : shape[cut.dim - 1] == segments.rows && (segments.rows == 1 || cut.dim == 1);
    };
    if (cut.dim >= shape.rank() || !has_rows() || !is_alone()) {
      throw InvalidArgument(fmt::format(
          "{} of shape {} cannot be divided by {} in a batch of packed sequences with {} row(s): the dim before the "
          "sequence must be the rows, dim 0 of several; leave the field out, or do not pack",
          field_.path, shape.to_string(), to_string(cut.placement), segments.rows));
    }
    for (std::int64_t row = 0; row < segments.rows; ++row) check_row(segments, row, cut);
  }

  void check_row(const Segments& segments, std::int64_t row, const Cut& cut) const {
    const bool covers = segments.entries > 0 && segments.at(row, 0) == 0 &&
                        segments.at(row, segments.entries - 1) == field_.shape[cut.dim];
    if (!covers) {
      throw InvalidArgument(fmt::format("{} of row {} must run from 0 to {}, the length of {}", field_.segments.path,
                                        row, field_.shape[cut.dim], field_.path));
    }
    for (std::int64_t entry = 0; entry + 1 < segments.entries; ++entry) {
      const auto length = segments.at(row, entry + 1) - segments.at(row, entry);
      if (length < 0)
        throw InvalidArgument(fmt::format("{} of row {} decreases at entry {}", field_.segments.path, row, entry + 1));
      if (length % cut.divisor() == 0) continue;
      throw InvalidArgument(fmt::format(
          "packed sequence {} of row {} has {} positions, which 2*{}={} does not divide; choose --pad-to as "
          "a multiple of {}",
          entry, row, length, axis_of(cut.placement), cut.divisor(), cut.divisor()));
    }
  }

  /// Returns whether this cut splits a global batch that is not full.
  bool is_short(const Cut& cut) const {
    return cut.shares_batch && short_samples_ > 0 && field_.shape.rank() > 0 && field_.shape[0] == short_samples_;
  }

  [[noreturn]] void throw_indivisible(const Cut& cut, std::int64_t left) const {
    std::int64_t multiple = 1;
    for (const Cut& other : cuts_) {
      if (other.dim == cut.dim) multiple *= other.divisor();
    }
    const auto extent = field_.shape[cut.dim];
    throw InvalidArgument(fmt::format(
        "{} has {} along dim {}{}, which {}{}={} does not divide; choose {} a multiple of {}", field_.path, extent,
        cut.dim, left == extent ? "" : fmt::format(" ({} of it in a part so far)", left), cut.zigzag ? "2*" : "",
        axis_of(cut.placement), cut.divisor(),
        cut.shares_batch ? "a global batch that is" : (cut.zigzag ? "--seq as" : "an extent that is"), multiple));
  }

  Part part_of(int rank) const {
    Region region(field_.shape);
    for (const Cut& cut : cuts_) {
      const std::int64_t at = cut.axis.of(rank);
      if (cut.zigzag && field_.segments) continue;
      if (cut.zigzag) region.keep_zigzag(cut.dim, at, cut.axis.size());
      else if (is_short(cut)) region.keep_range(0, at * full_share_, (at + 1) * full_share_);
      else region.keep_part(cut.dim, at, cut.axis.size());
    }
    for (const Cut& cut : cuts_) {
      if (cut.zigzag && field_.segments) {
        region.keep_zigzag_of_segments(cut.dim, *field_.segments.boundaries, cut.axis.of(rank), cut.axis.size());
      }
    }
    LEVADA_ASSERT(full_share_ > 0 || !field_.is_tensor() ||
                      region.element_count() * parts_.size() == field_.shape.element_count().value(),
                  "the parts of a field are equal and together hold each of its elements once");
    const auto bytes = field_.is_tensor() ? field_.dtype.bytes(region.element_count()) : 0;
    return {std::move(region), bytes};
  }

  const Field& field_;
  std::size_t rule_;
  std::int64_t short_samples_, part_samples_;
  std::int64_t full_share_ = 0;  ///< samples of a short batch in a full part, after the previous cuts
  std::vector<Cut> cuts_;
  std::vector<std::optional<Part>> parts_;  ///< by the coordinates along the cuts' axes
};

}  // namespace

std::uint64_t bytes_of_batch(const std::vector<Field>& fields) {
  std::uint64_t bytes = 0;
  for (const Field& field : fields) {
    if (field.is_tensor()) bytes += field.dtype.bytes(field.shape.element_count().value());
  }
  return bytes;
}

std::int64_t segment_divisor(const Layout& layout, const Mesh& mesh, std::string_view path) {
  const auto rule = rule_of(path, layout);
  std::int64_t divisor = 1;
  for (const Placement& placement : rule < layout.rules.size() ? layout.rules[rule].placements : layout.otherwise) {
    const auto* zigzag = std::get_if<Zigzag>(&placement);
    const std::int64_t size = zigzag ? mesh.span(zigzag->axis).size() : 1;
    if (size > 1) divisor *= 2 * size;
  }
  return divisor;
}

std::string_view to_string(Divide divide) {
  return enum_name(divide, divide_names);
}

Divide parse_divide(std::string_view word, std::string_view what) {
  return parse_enum(what, word, divide_names);
}

std::vector<Move> plan_unit(const std::vector<Field>& fields, const Layout& layout, const Mesh& mesh,
                            std::span<const Audience> audiences, const FanOutOptions& options) {
  const Needs needs(layout, mesh, options.divide);
  if (options.short_samples > 0 && options.part_samples < 1) {
    throw InvalidArgument(
        fmt::format("a global batch of {} samples is not full; part_samples, the samples in a full part, must be "
                    "positive, got {}",
                    options.short_samples, options.part_samples));
  }
  check_required(fields, layout);
  std::vector<FieldParts> parts;
  parts.reserve(fields.size());
  for (const Field& field : fields) parts.emplace_back(field, layout, needs, options);

  std::vector<Move> moves;
  for (std::size_t audience = 0; audience < audiences.size(); ++audience) {
    const int rank = audiences[audience].to.front();  // any of them, since they need the same parts
    for (std::size_t field = 0; field < parts.size(); ++field) {
      if (!needs.holds(parts[field].rule(), rank)) continue;
      LEVADA_ASSERT(std::ranges::all_of(audiences[audience].to,
                                        [&](int each) {
                                          return needs.holds(parts[field].rule(), each) &&
                                                 needs.class_of(each) == needs.class_of(rank);
                                        }),
                    "all ranks of an audience need the same part");
      moves.push_back(parts[field].move_to(rank, static_cast<int>(field), static_cast<int>(audience)));
    }
  }
  LEVADA_ASSERT(std::ranges::all_of(parts, &FieldParts::are_apart), "each element of a field is in one of its parts");
  return moves;
}

Plan plan_fan_out(const std::vector<Field>& fields, const Layout& layout, const Mesh& mesh,
                  const FanOutOptions& options) {
  Plan plan{mesh, fields, fan_out_audiences(layout, mesh, options), {}};
  plan.moves = plan_unit(fields, layout, mesh, plan.audiences, options);
  return plan;
}

std::span<const Move> Plan::moves_of(int audience) const {
  const auto before = [](const Move& a, const Move& b) { return a.audience < b.audience; };
  const auto [first, last] = std::equal_range(moves.begin(), moves.end(), Move{0, audience, {}, 0}, before);
  return {first, last};
}

std::uint64_t Plan::bytes_sent() const {
  return std::accumulate(moves.begin(), moves.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Move& move) { return sum + move.bytes; });
}

std::uint64_t Plan::bytes_delivered() const {
  std::uint64_t sum = 0;
  for (const Move& move : moves) sum += move.bytes * audiences[static_cast<std::size_t>(move.audience)].to.size();
  return sum;
}

std::vector<std::uint64_t> Plan::bytes_by_rank() const {
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(mesh.size()), 0);
  for (const Move& move : moves) {
    for (const int rank : audiences[static_cast<std::size_t>(move.audience)].to) {
      bytes[static_cast<std::size_t>(rank)] += move.bytes;
    }
  }
  return bytes;
}

std::uint64_t Plan::peak_bytes() const {
  std::vector<std::uint64_t> message_bytes(audiences.size(), 0);
  for (const Move& move : moves) message_bytes[static_cast<std::size_t>(move.audience)] += move.bytes;
  const std::uint64_t batch = bytes_of_batch(fields);
  std::uint64_t peak = 0, held = 0;
  for (std::size_t i = 0; i < audiences.size(); ++i) {
    const bool same_reader = i > 0 && audiences[i].from == audiences[i - 1].from;
    if (!same_reader) held = 0;
    if (!same_reader || audiences[i].unit != audiences[i - 1].unit) held += batch;
    held += message_bytes[i];
    peak = std::max(peak, held);
  }
  return peak;
}

}  // namespace levada
