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

TEST(Mesh, LetsTheLastAxisVaryFastest) {
  const Mesh mesh = Mesh::parse("dp=2,cp=3,tp=4");
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.axis_stride("tp"), 1);
  EXPECT_EQ(mesh.axis_stride("cp"), 4);
  EXPECT_EQ(mesh.axis_stride("dp"), 12);
  EXPECT_THAT(mesh.coordinates(17), ElementsAre(1, 1, 1));
  EXPECT_EQ(mesh.describe(17), "dp1 cp1 tp1");
}

TEST(Mesh, CountsAnAxisItDoesNotHaveAsOne) {
  const Mesh mesh = Mesh::parse("dp=2");
  EXPECT_FALSE(mesh.has_axis("pp"));
  EXPECT_EQ(mesh.axis_size("pp"), 1);
  EXPECT_EQ(mesh.axis_stride("pp"), 2);
  EXPECT_EQ(mesh.coordinate(1, "pp"), 0);
}

TEST(Mesh, TakesCoordinatesBackToTheRank) {
  const Mesh mesh = Mesh::parse("dp=2,cp=1,tp=3,pp=2");
  for (int rank = 0; rank < mesh.size(); ++rank) EXPECT_EQ(mesh.rank_at(mesh.coordinates(rank)), rank);
}

TEST(Mesh, PrintsAsItIsParsed) {
  for (const char* text : {"", "dp=2", "dp=2,cp=1,tp=3", "_a9=7"}) EXPECT_EQ(Mesh::parse(text).to_string(), text);
}

TEST(Mesh, GroupsRanksThatDifferAlongTheAxesNamedAlone) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2,pp=2");
  EXPECT_THAT(mesh.group(5, {"tp"}), ElementsAre(5, 7));
  EXPECT_THAT(mesh.group(5, {"pp", "dp"}), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(mesh.group(5, {}), ElementsAre(5));
  EXPECT_THAT(mesh.group(5, {"cp"}), ElementsAre(5));
  EXPECT_THAT(mesh.group(5, {"dp", "tp", "pp"}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Mesh, SaysWhichPartOfItsTextIsWrong) {
  EXPECT_THAT(refusal("dp=2,tp"), HasSubstr("'tp' is no axis"));
  EXPECT_THAT(refusal("dp=x"), HasSubstr("size of 'dp=x'"));
  EXPECT_THAT(refusal("dp=2x"), HasSubstr("size of 'dp=2x'"));
  EXPECT_THAT(refusal("dp=99999999999"), HasSubstr("below 2^31"));
  EXPECT_THAT(refusal("dp=0"), HasSubstr("axis dp of a mesh has size 0"));
  EXPECT_THAT(refusal("dp=-1"), HasSubstr("size -1"));
  EXPECT_THAT(refusal("=2"), HasSubstr("'' cannot name an axis"));
  EXPECT_THAT(refusal("d p=2"), HasSubstr("'d p' cannot name an axis"));
  EXPECT_THAT(refusal("2d=2"), HasSubstr("'2d' cannot name an axis"));
  EXPECT_THAT(refusal("dp=2,dp=3"), HasSubstr("axis dp stands twice"));
  EXPECT_THAT(refusal("dp=2,"), HasSubstr("ends with a comma"));
  EXPECT_THAT(refusal("dp=2,,tp=1"), HasSubstr("'' is no axis"));
}

TEST(Mesh, HasAtMostAsManyRanksAsAnIntCounts) {
  EXPECT_EQ(Mesh::parse("dp=2147483647").size(), 2147483647);
  EXPECT_THAT(refusal("dp=65536,tp=32768"), HasSubstr("at most 2147483647 ranks"));
  EXPECT_THAT(refusal("a=2147483647,b=2147483647,c=2147483647"), HasSubstr("at most 2147483647 ranks"));
}

TEST(Mesh, RefusesRanksAndCoordinatesThatItDoesNotHave) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  EXPECT_THROW(mesh.coordinate(4, "dp"), InvalidArgument);
  EXPECT_THROW(mesh.coordinate(-1, "dp"), InvalidArgument);
  EXPECT_THROW(mesh.rank_at({0, 2}), InvalidArgument);
  EXPECT_THROW(mesh.rank_at({0, -1}), InvalidArgument);
  EXPECT_THROW(mesh.rank_at({0}), InvalidArgument);
}

}  // namespace
}  // namespace levada
