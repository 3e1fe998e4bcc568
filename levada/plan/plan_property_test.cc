// Compares random meshes and layouts with an oracle that decides for each element and rank whether the rank needs it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "levada/base/error.h"
#include "levada/plan/plan.h"

namespace levada {
namespace {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int number(int least, int most) { return std::uniform_int_distribution<int>(least, most)(engine_); }
  bool chance(int percent) { return number(1, 100) <= percent; }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    std::shuffle(values.begin(), values.end(), engine_);
  }

 private:
  std::mt19937 engine_;
};

struct Case {
  Mesh mesh;
  Layout layout;
  FanOutOptions options;
  std::vector<Field> fields;  ///< field i follows rule i; the last one follows `otherwise`
};

/// Returns a mesh with every role and one to three data axes, whose names are either known or declared.
Mesh random_mesh(Random& random) {
  const std::vector<Mesh::Names> data_axes = {
      {"dp"}, {"dp_replicate", "dp_shard"}, {"dp", "fsdp"}, {"data", "ddp", "fsdp"}, {"outer", "inner"}};
  const auto kind = static_cast<std::size_t>(random.number(0, 4));
  Mesh::Names names = data_axes[kind];
  for (const char* shared : {"cp", "tp", "pp"}) names.emplace_back(shared);
  std::erase_if(names, [&](const auto&) { return random.chance(15); });
  random.shuffle(names);
  std::vector<Axis> axes;
  for (const auto& name : names) axes.push_back({name, random.number(1, names.size() > 4 ? 2 : 3)});
  if (kind < 4) return Mesh(axes);
  std::erase_if(names, [&](const auto& name) { return name != "outer" && name != "inner"; });
  return Mesh(axes, names);
}

/// Returns the names that placements may use together: "dp" for all data axes, or single ones.
Mesh::Names random_axes(Random& random, const Mesh& mesh) {
  Mesh::Names names = {"cp", "tp", "pp"};
  if (random.chance(50)) names.emplace_back("dp");
  else std::ranges::copy_if(mesh.data_axes(), std::back_inserter(names), [](const auto& name) { return name != "dp"; });
  random.shuffle(names);
  names.resize(static_cast<std::size_t>(random.number(0, static_cast<int>(names.size()))));
  return names;
}

/// Returns the axes that a name means: all data axes for "dp".
Mesh::Names axes_of(const Mesh& mesh, std::string_view name) {
  if (name == "dp") return mesh.data_axes();
  return mesh.has_axis(name) ? Mesh::Names{std::string(name)} : Mesh::Names{};
}

int size_along(const Mesh& mesh, std::string_view name) {
  int size = 1;
  for (const auto& axis : axes_of(mesh, name)) size *= mesh.axis_size(axis);
  return size;
}

int coordinate_along(const Mesh& mesh, int rank, std::string_view name) {
  int coordinate = 0;
  for (const auto& axis : axes_of(mesh, name)) {
    coordinate = coordinate * mesh.axis_size(axis) + mesh.coordinate(rank, axis);
  }
  return coordinate;
}

bool is_data(const Mesh& mesh, std::string_view name) {
  return name == "dp" || std::ranges::find(mesh.data_axes(), name) != mesh.data_axes().end();
}

std::vector<Placement> random_placements(Random& random, const Mesh& mesh, Divide divide) {
  std::vector<Placement> placements;
  for (const std::string& axis : random_axes(random, mesh)) {
    if (is_data(mesh, axis) && divide == Divide::deal) {
      if (random.chance(70)) placements.push_back(Shard{axis, 0});
      continue;
    }
    const int dim = random.number(0, 2);
    switch (axis == "pp" || is_data(mesh, axis) ? random.number(0, 5) : random.number(0, 3)) {
      case 0: placements.push_back(Replicate{axis}); break;
      case 1: placements.push_back(Shard{axis, dim}); break;
      case 2: placements.push_back(Zigzag{axis, dim}); break;
      default: {
        Stages stages{axis, {}};
        for (const char* name : {"first", "last", "middle"}) {
          const bool is_there = size_along(mesh, axis) > 1 || std::string_view(name) != "middle";
          if (random.chance(40) && is_there) stages.names.emplace_back(name);
        }
        placements.push_back(stages);
      }
    }
  }
  return placements;
}

/// Returns small multiples of the smallest extents that the placements divide.
Shape extents_for(const std::vector<Placement>& placements, const Mesh& mesh, Random& random) {
  Shape shape{random.number(1, 2), random.number(1, 2), random.number(1, 2)};
  for (const Placement& placement : placements) {
    const int size = size_along(mesh, axis_of(placement));
    if (size == 1) continue;
    if (const auto* shard = std::get_if<Shard>(&placement)) shape[static_cast<std::size_t>(shard->dim)] *= size;
    if (const auto* zigzag = std::get_if<Zigzag>(&placement)) shape[static_cast<std::size_t>(zigzag->dim)] *= 2 * size;
  }
  return shape;
}

Readers random_readers(Random& random, const Mesh& mesh) {
  const int kind = random.number(0, 5);
  if (kind == 0) return Readers::parse("one");
  if (kind == 1) return Readers::parse("all");
  if (kind == 2) return Readers::parse("host");
  if (kind == 3) return Readers::parse("spread");
  auto axes = random_axes(random, mesh);
  if (axes.empty()) axes.emplace_back("dp");
  return {Readers::Kind::axes, axes};
}

Case random_case(unsigned seed) {
  Random random(seed);
  Case c;
  c.mesh = random_mesh(random);
  c.options.divide = random.chance(50) ? Divide::deal : Divide::split;
  c.options.readers = random_readers(random, c.mesh);
  for (int rank = 0; rank < c.mesh.size(); ++rank) c.options.host_of.push_back(random.number(0, 3));
  std::vector<int> stages(static_cast<std::size_t>(c.mesh.axis_size("pp")));
  std::iota(stages.begin(), stages.end(), 0);
  std::erase_if(stages, [&](int) { return random.chance(60); });
  for (const Axis& axis : c.mesh.axes()) std::erase_if(stages, [&](int s) { return s >= axis.size; });
  c.layout.stages["middle"] = stages;

  const DType types[] = {dtypes::int64, dtypes::boolean, dtypes::float32};
  const int rules = random.number(0, 3);
  for (int i = 0; i <= rules; ++i) {
    const auto placements = random_placements(random, c.mesh, c.options.divide);
    const auto path = "field" + std::to_string(i);
    if (i < rules) c.layout.rules.push_back({path, placements, true});
    else c.layout.otherwise = placements;
    c.fields.push_back({path, types[random.number(0, 2)], extents_for(placements, c.mesh, random)});
  }
  return c;
}

/// Returns the index of position `at` of `extent` in the part of `coordinate`, if it is in it; `extent` becomes the
/// part's.
std::optional<std::int64_t> place_in_part(const Placement& placement, std::int64_t at, std::int64_t& extent, int size,
                                          int coordinate) {
  if (std::holds_alternative<Shard>(placement)) {
    extent /= size;
    if (at / extent != coordinate) return std::nullopt;
    return at % extent;
  }
  const std::int64_t chunk = extent / (2 * size);
  extent = 2 * chunk;
  if (at / chunk == coordinate) return at % chunk;
  if (at / chunk == 2 * size - 1 - coordinate) return chunk + at % chunk;
  return std::nullopt;
}

bool stage_holds(const Case& c, const Stages& stages, int rank) {
  const int size = size_along(c.mesh, stages.axis), coordinate = coordinate_along(c.mesh, rank, stages.axis);
  if (size == 1) return true;
  for (const std::string& name : stages.names) {
    if (name == "first" && coordinate == 0) return true;
    if (name == "last" && coordinate == size - 1) return true;
    if (name != "middle") continue;
    for (const int stage : c.layout.stages.at("middle")) {
      if (stage == coordinate) return true;
    }
  }
  return false;
}

/// One rank's need of one field: the C-order numbers of the elements in the rank's part, in order; empty if the rank
/// does not need the field.
using Need = std::optional<std::vector<std::int64_t>>;

Need need_of(const Case& c, const Field& field, int rank) {
  const auto& placements = c.layout.placements_of(field.path);
  for (const Placement& placement : placements) {
    const auto* stages = std::get_if<Stages>(&placement);
    if (stages != nullptr && !stage_holds(c, *stages, rank)) return std::nullopt;
  }
  std::map<std::vector<std::int64_t>, std::int64_t> by_place;
  std::int64_t number = 0;
  const Shape& shape = field.shape;
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    for (std::int64_t j = 0; j < shape[1]; ++j) {
      for (std::int64_t k = 0; k < shape[2]; ++k, ++number) {
        std::vector<std::int64_t> at = {i, j, k};
        Shape extents = shape;
        bool needed = true;
        for (const Placement& placement : placements) {
          if (std::holds_alternative<Replicate>(placement) || std::holds_alternative<Stages>(placement)) continue;
          const auto axis = axis_of(placement);
          if (size_along(c.mesh, axis) == 1) continue;
          if (is_data(c.mesh, axis) && c.options.divide == Divide::deal) continue;
          const auto* shard = std::get_if<Shard>(&placement);
          const auto dim = static_cast<std::size_t>(shard ? shard->dim : std::get<Zigzag>(placement).dim);
          const auto place = place_in_part(placement, at[dim], extents[dim], size_along(c.mesh, axis),
                                           coordinate_along(c.mesh, rank, axis));
          needed = place.has_value();
          if (!needed) break;
          at[dim] = *place;
        }
        if (needed) by_place[at] = number;
      }
    }
  }
  std::vector<std::int64_t> elements;
  for (const auto& [place, element] : by_place) elements.push_back(element);
  return elements;
}

int reader_spread_over_hosts(const Case& c, int rank) {
  std::map<int, int> readers_on;
  for (int coordinate = 0;; ++coordinate) {
    int chosen = -1;
    for (int each = 0; each < c.mesh.size(); ++each) {
      if (coordinate_along(c.mesh, each, "dp") != coordinate) continue;
      const auto load = [&](int of) { return readers_on[c.options.host_of[static_cast<std::size_t>(of)]]; };
      if (chosen < 0 || load(each) < load(chosen)) chosen = each;
    }
    if (coordinate == coordinate_along(c.mesh, rank, "dp")) return chosen;
    ++readers_on[c.options.host_of[static_cast<std::size_t>(chosen)]];
  }
}

int reader_of(const Case& c, int rank) {
  switch (c.options.readers.kind) {
    case Readers::Kind::one: return 0;
    case Readers::Kind::all: return rank;
    case Readers::Kind::spread: return reader_spread_over_hosts(c, rank);
    default: break;
  }
  for (int reader = 0;; ++reader) {
    bool same = true;
    if (c.options.readers.kind == Readers::Kind::host) {
      same = c.options.host_of[static_cast<std::size_t>(reader)] == c.options.host_of[static_cast<std::size_t>(rank)];
    }
    for (const std::string& axis : c.options.readers.axes) {
      same = same && coordinate_along(c.mesh, reader, axis) == coordinate_along(c.mesh, rank, axis);
    }
    if (same) return reader;
  }
}

std::vector<std::int64_t> elements_of(const Region& region, const Shape& shape) {
  std::vector<std::int64_t> elements = {0};
  for (std::size_t dim = 0; dim < shape.rank(); ++dim) {
    std::vector<std::int64_t> next;
    for (const std::int64_t outer : elements) {
      for (const Range& range : region.dims()[dim]) {
        for (auto i = range.begin; i < range.end; ++i) next.push_back(outer * shape[dim] + i);
      }
    }
    elements = std::move(next);
  }
  return elements;
}

std::string describe(const Case& c) {
  return fmt::format("mesh {}, data axes {}", c.mesh.to_string(), fmt::join(c.mesh.data_axes(), ",")) + ", readers " +
         c.options.readers.to_string() + (c.options.divide == Divide::deal ? ", deal, " : ", split, ") +
         c.layout.to_json();
}

class RandomPlan : public ::testing::TestWithParam<unsigned> {};

constexpr unsigned cases_per_test = 20;

template <typename F>
void for_each_case(unsigned group, F&& f) {
  for (unsigned i = 0; i < cases_per_test; ++i) {
    const Case c = random_case(group * cases_per_test + i);
    SCOPED_TRACE(describe(c));
    f(c);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(RandomPlan, DeliversEveryElementToExactlyTheRanksThatNeedIt) {
  for_each_case(GetParam(), [](const Case& c) {
    const Plan plan = plan_fan_out(c.fields, c.layout, c.mesh, c.options);
    std::vector<int> times_reached(static_cast<std::size_t>(c.mesh.size()), 0);
    std::uint64_t lower_bound = 0;
    for (std::size_t a = 0; a < plan.audiences.size(); ++a) {
      const Audience& audience = plan.audiences[a];
      ASSERT_TRUE(std::is_sorted(audience.to.begin(), audience.to.end()));
      for (const int rank : audience.to) {
        ++times_reached[static_cast<std::size_t>(rank)];
        ASSERT_EQ(audience.from, reader_of(c, rank));
        ASSERT_EQ(audience.unit, c.options.divide == Divide::deal ? coordinate_along(c.mesh, rank, "dp") : 0);
        std::map<int, const Move*> moves;
        for (const Move& move : plan.moves_of(static_cast<int>(a)))
          ASSERT_TRUE(moves.emplace(move.field, &move).second);
        for (std::size_t f = 0; f < c.fields.size(); ++f) {
          const Need need = need_of(c, c.fields[f], rank);
          const auto move = moves.find(static_cast<int>(f));
          ASSERT_EQ(need.has_value(), move != moves.end()) << "rank " << rank << ", field " << f;
          if (!need) continue;
          ASSERT_EQ(elements_of(move->second->region, c.fields[f].shape), *need) << "rank " << rank << ", field " << f;
          ASSERT_EQ(move->second->bytes, c.fields[f].dtype.bytes(need->size()));
          lower_bound += c.fields[f].dtype.bytes(need->size());
        }
      }
    }
    ASSERT_THAT(times_reached, ::testing::Each(1));
    ASSERT_EQ(plan.bytes_delivered(), lower_bound);
    const auto by_rank = plan.bytes_by_rank();
    ASSERT_EQ(std::accumulate(by_rank.begin(), by_rank.end(), std::uint64_t{0}), lower_bound);
  });
}

TEST_P(RandomPlan, SendsOneMessageToAllRanksWithTheSameNeeds) {
  for_each_case(GetParam(), [](const Case& c) {
    std::map<std::tuple<int, int, std::vector<Need>>, std::size_t> audience_of_needs;
    const auto audiences = fan_out_audiences(c.layout, c.mesh, c.options);
    for (std::size_t a = 0; a < audiences.size(); ++a) {
      for (const int rank : audiences[a].to) {
        std::vector<Need> needs;
        for (const Field& field : c.fields) needs.push_back(need_of(c, field, rank));
        const auto [entry, is_new] = audience_of_needs.try_emplace({audiences[a].from, audiences[a].unit, needs}, a);
        ASSERT_EQ(entry->second, a) << "rank " << rank << " could share a message";
      }
    }
    ASSERT_EQ(audience_of_needs.size(), audiences.size());
  });
}

TEST_P(RandomPlan, IsTheSameOnEveryRank) {
  for_each_case(GetParam(), [](const Case& c) {
    const Plan plan = plan_fan_out(c.fields, c.layout, c.mesh, c.options);
    ASSERT_EQ(plan_fan_out(c.fields, Layout::from_json(c.layout.to_json()),
                           Mesh::parse(c.mesh.to_string(), c.mesh.data_axes()), c.options),
              plan);
    ASSERT_EQ(plan.audiences, fan_out_audiences(c.layout, c.mesh, c.options));
    for (std::size_t i = 0; i + 1 < plan.audiences.size(); ++i) {
      const Audience &a = plan.audiences[i], &b = plan.audiences[i + 1];
      ASSERT_LT(std::tuple(a.from, a.unit, a.to.front()), std::tuple(b.from, b.unit, b.to.front()));
    }
    for (std::size_t i = 0; i + 1 < plan.moves.size(); ++i) {
      const Move &a = plan.moves[i], &b = plan.moves[i + 1];
      ASSERT_LT(std::tuple(a.audience, a.field), std::tuple(b.audience, b.field));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, RandomPlan, ::testing::Range(0u, 25u));

}  // namespace
}  // namespace levada
