#include "levada/mesh/mesh.h"

#include <gmock/gmock.h>

#include "levada/base/error.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(std::string_view text) {
  try {
    Mesh::parse(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Mesh, IsOneRankWithoutAxes) {
  EXPECT_EQ(Mesh().size(), 1);
  EXPECT_EQ(Mesh::parse(""), Mesh());
  EXPECT_EQ(Mesh().describe(0), "rank 0");
}

TEST(Mesh, VariesTheLastAxisFastest) {
  const Mesh mesh = Mesh::parse("dp=2,cp=3,tp=4");
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.axis_stride("tp"), 1);
  EXPECT_EQ(mesh.axis_stride("cp"), 4);
  EXPECT_EQ(mesh.axis_stride("dp"), 12);
  EXPECT_THAT(mesh.coordinates(17), ElementsAre(1, 1, 1));
  EXPECT_EQ(mesh.describe(17), "dp1 cp1 tp1");
}

TEST(Mesh, DividesDataAlongKnownDataAxesAndSharesItAlongTheOthers) {
  for (const char* name : {"dp", "dp_replicate", "dp_shard", "fsdp", "data", "ddp"}) {
    EXPECT_EQ(role_of(name), AxisRole::data) << name;
  }
  for (const char* name : {"tp", "cp", "pp", "sp"}) EXPECT_EQ(role_of(name), AxisRole::shared) << name;
  EXPECT_EQ(role_of("expert"), AxisRole::unknown);

  EXPECT_EQ(Mesh::parse("data=4").data_size(), 4);
  EXPECT_EQ(Mesh::parse("tp=4").data_size(), 1);
  EXPECT_EQ(Mesh::parse("tp=4").data_coordinate(3), 0);
}

TEST(Mesh, FlattensSeveralDataAxesInRowMajorOrder) {
  const Mesh mesh = Mesh::parse("dp_replicate=2,tp=2,dp_shard=3");
  EXPECT_THAT(mesh.data_axes(), ElementsAre("dp_replicate", "dp_shard"));
  EXPECT_EQ(mesh.data_size(), 6);
  std::vector<int> coordinates;
  for (int rank = 0; rank < mesh.size(); ++rank) coordinates.push_back(mesh.data_coordinate(rank));
  EXPECT_THAT(coordinates, ElementsAre(0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5));
  for (int coordinate = 0; coordinate < 6; ++coordinate) {
    EXPECT_EQ(mesh.data_coordinate(mesh.data_span().first_rank(coordinate)), coordinate);
  }
  EXPECT_EQ(mesh.span("dp"), mesh.data_span());
  EXPECT_EQ(mesh.span("dp_shard").size(), 3);
}

TEST(Mesh, ListsAxesOfUnknownDataSharing) {
  const auto axes = std::vector<Axis>{{"replica", 2}, {"ep", 2}, {"tp", 2}};
  EXPECT_THAT(Mesh(axes).undecided_axes(), ElementsAre("replica", "ep"));
  EXPECT_TRUE(Mesh({{"ep", 1}, {"dp", 2}}).undecided_axes().empty());
  const Mesh mesh(axes, Mesh::Names{"replica"});
  EXPECT_TRUE(mesh.undecided_axes().empty());
  EXPECT_EQ(mesh.data_size(), 2);
  EXPECT_EQ(mesh.data_coordinate(4), 1);
  EXPECT_NE(mesh, Mesh(axes));
}

TEST(Mesh, GivenDataAxesReplaceTheKnownOnes) {
  const Mesh mesh({{"dp", 2}, {"fsdp", 2}}, Mesh::Names{"fsdp"});
  EXPECT_THAT(mesh.data_axes(), ElementsAre("fsdp"));
  EXPECT_EQ(mesh.data_coordinate(2), 0);
  EXPECT_EQ(Mesh({{"dp", 2}}, Mesh::Names{}).data_size(), 1);
}

TEST(Mesh, RejectsAMissingOrDuplicateDataAxis) {
  EXPECT_THROW(Mesh({{"dp", 2}}, Mesh::Names{"x"}), InvalidArgument);
  EXPECT_THROW(Mesh({{"x", 2}}, Mesh::Names{"x", "x"}), InvalidArgument);
}

TEST(Mesh, FollowsTheOrderOfMegatron) {
  const std::vector<Axis> axes = {{"tp", 2}, {"pp", 3}, {"dp", 4}, {"cp", 5}};
  EXPECT_EQ(Mesh::ordered(axes, Mesh::default_order).to_string(), "pp=3,dp=4,cp=5,tp=2");
  EXPECT_EQ(Mesh::ordered(axes, "tp-cp-pp-dp").to_string(), "dp=4,pp=3,cp=5,tp=2");
  const std::vector<Axis> hybrid = {{"dp_replicate", 2}, {"tp", 2}, {"dp_shard", 3}, {"pp", 2}};
  EXPECT_EQ(Mesh::ordered(hybrid, Mesh::default_order).to_string(), "pp=2,dp_replicate=2,dp_shard=3,tp=2");
  EXPECT_EQ(Mesh::ordered(hybrid, "dp_shard-tp-pp-dp").to_string(), "dp_replicate=2,pp=2,tp=2,dp_shard=3");
}

TEST(Mesh, RejectsAnOrderWithAMissingOrDuplicateAxis) {
  const auto refusal_of_order = [](std::vector<Axis> axes, std::string_view order) -> std::string {
    try {
      Mesh::ordered(std::move(axes), order);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal_of_order({{"tp", 2}, {"expert", 2}}, "tp-dp"), HasSubstr("does not place axis expert"));
  EXPECT_THAT(refusal_of_order({{"expert", 2}}, "tp-dp"), HasSubstr("does not place axis expert"));
  EXPECT_THAT(refusal_of_order({{"tp", 2}}, "tp-tp"), HasSubstr("tp appears twice"));
  EXPECT_THAT(refusal_of_order({{"tp", 2}}, "tp--dp"), HasSubstr("'' is not an axis"));
}

TEST(Mesh, TreatsAMissingAxisAsSizeOne) {
  const Mesh mesh = Mesh::parse("dp=2");
  EXPECT_FALSE(mesh.has_axis("pp"));
  EXPECT_EQ(mesh.axis_size("pp"), 1);
  EXPECT_EQ(mesh.axis_stride("pp"), 2);
  EXPECT_EQ(mesh.coordinate(1, "pp"), 0);
}

TEST(Mesh, ConvertsCoordinatesBackToTheRank) {
  const Mesh mesh = Mesh::parse("dp=2,cp=1,tp=3,pp=2");
  for (int rank = 0; rank < mesh.size(); ++rank) EXPECT_EQ(mesh.rank_at(mesh.coordinates(rank)), rank);
}

TEST(Mesh, PrintsAsItIsParsed) {
  for (const char* text : {"", "dp=2", "dp=2,cp=1,tp=3", "_a9=7"}) EXPECT_EQ(Mesh::parse(text).to_string(), text);
}

TEST(Mesh, GroupsRanksThatDifferOnlyAlongTheNamedAxes) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2,pp=2");
  EXPECT_THAT(mesh.group(5, {"tp"}), ElementsAre(5, 7));
  EXPECT_THAT(mesh.group(5, {"pp", "dp"}), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(mesh.group(5, {}), ElementsAre(5));
  EXPECT_THAT(mesh.group(5, {"cp"}), ElementsAre(5));
  EXPECT_THAT(mesh.group(5, {"dp", "tp", "pp"}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Mesh, NamesTheInvalidPartOfItsText) {
  EXPECT_THAT(refusal("dp=2,tp"), HasSubstr("'tp' is not an axis"));
  EXPECT_THAT(refusal("dp=x"), HasSubstr("size of 'dp=x'"));
  EXPECT_THAT(refusal("dp=2x"), HasSubstr("size of 'dp=2x'"));
  EXPECT_THAT(refusal("dp=99999999999"), HasSubstr("below 2^31"));
  EXPECT_THAT(refusal("dp=0"), HasSubstr("axis dp of a mesh has size 0"));
  EXPECT_THAT(refusal("dp=-1"), HasSubstr("size -1"));
  EXPECT_THAT(refusal("=2"), HasSubstr("'' cannot name an axis"));
  EXPECT_THAT(refusal("d p=2"), HasSubstr("'d p' cannot name an axis"));
  EXPECT_THAT(refusal("2d=2"), HasSubstr("'2d' cannot name an axis"));
  EXPECT_THAT(refusal("dp=2,dp=3"), HasSubstr("axis dp appears twice"));
  EXPECT_THAT(refusal("dp=2,"), HasSubstr("ends with a comma"));
  EXPECT_THAT(refusal("dp=2,,tp=1"), HasSubstr("'' is not an axis"));
}

TEST(Mesh, RejectsMoreRanksThanAnIntHolds) {
  EXPECT_EQ(Mesh::parse("dp=2147483647").size(), 2147483647);
  EXPECT_THAT(refusal("dp=65536,tp=32768"), HasSubstr("at most 2147483647 ranks"));
  EXPECT_THAT(refusal("a=2147483647,b=2147483647,c=2147483647"), HasSubstr("at most 2147483647 ranks"));
}

TEST(Mesh, RejectsRanksAndCoordinatesOutOfRange) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  EXPECT_THROW(mesh.coordinate(4, "dp"), InvalidArgument);
  EXPECT_THROW(mesh.coordinate(-1, "dp"), InvalidArgument);
  EXPECT_THROW(mesh.rank_at({0, 2}), InvalidArgument);
  EXPECT_THROW(mesh.rank_at({0, -1}), InvalidArgument);
  EXPECT_THROW(mesh.rank_at({0}), InvalidArgument);
}

}  // namespace
}  // namespace levada
