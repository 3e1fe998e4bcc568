#include "levada/mesh/placement.h"

#include <gmock/gmock.h>

#include "levada/base/error.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

std::string refused_placement(std::string_view text) {
  try {
    parse_placement(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Placement, IsParsedAsItIsPrinted) {
  const std::vector<Placement> all = {Shard{"dp", 0},
                                      Shard{"tp", 12},
                                      Replicate{"tp"},
                                      Zigzag{"cp", 1},
                                      Stages{"pp", {}},
                                      Stages{"pp", {"first"}},
                                      Stages{"pp", {"first", "last", "mtp"}}};
  for (const Placement& placement : all) EXPECT_EQ(parse_placement(to_string(placement)), placement);
  EXPECT_EQ(to_string(all[0]), "shard(dp,0)");
  EXPECT_EQ(to_string(all[2]), "replicate(tp)");
  EXPECT_EQ(to_string(all[3]), "zigzag(cp,1)");
  EXPECT_EQ(to_string(all[4]), "stages(pp)");
  EXPECT_EQ(to_string(all[6]), "stages(pp,first,last,mtp)");
}

TEST(Placement, AllowsSpacesBetweenItsParts) {
  EXPECT_EQ(parse_placement(" shard ( dp , 0 ) "), Placement(Shard{"dp", 0}));
}

TEST(Placement, NamesItsAxis) {
  EXPECT_EQ(axis_of(Zigzag{"cp", 1}), "cp");
  EXPECT_EQ(axis_of(Stages{"pp", {"first"}}), "pp");
}

TEST(Placement, ReportsTheFaultInItsText) {
  EXPECT_THAT(refused_placement(""), HasSubstr("no arguments"));
  EXPECT_THAT(refused_placement("shard"), HasSubstr("no arguments"));
  EXPECT_THAT(refused_placement("shard(dp,0"), HasSubstr("no arguments"));
  EXPECT_THAT(refused_placement(")("), HasSubstr("is not a placement"));
  EXPECT_THAT(refused_placement("shard(dp)"), HasSubstr("takes an axis and a dimension"));
  EXPECT_THAT(refused_placement("shard(dp,0,1)"), HasSubstr("takes an axis and a dimension"));
  EXPECT_THAT(refused_placement("shard(dp,-1)"), HasSubstr("'-1' is not a dimension"));
  EXPECT_THAT(refused_placement("zigzag(cp,x)"), HasSubstr("'x' is not a dimension"));
  EXPECT_THAT(refused_placement("shard(dp,99999999999)"), HasSubstr("is not a dimension"));
  EXPECT_THAT(refused_placement("replicate(tp,1)"), HasSubstr("takes only an axis"));
  EXPECT_THAT(refused_placement("replicate()"), HasSubstr("'' is not a name"));
  EXPECT_THAT(refused_placement("stages(pp,)"), HasSubstr("'' is not a name"));
  EXPECT_THAT(refused_placement("scatter(dp,0)"), HasSubstr("unknown kind 'scatter'"));
}

}  // namespace
}  // namespace levada
