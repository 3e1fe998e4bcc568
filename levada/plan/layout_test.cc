#include "levada/plan/layout.h"

#include <gmock/gmock.h>

#include "levada/base/refusal_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of_json(std::string_view text) {
  return refusal([&] { Layout::from_json(text); });
}

std::string refusal_on_mesh(const Layout& layout, std::string_view mesh) {
  return refusal([&] { layout.check(Mesh::parse(mesh)); });
}

TEST(Pattern, StarMatchesAnyRun) {
  EXPECT_TRUE(matches("tokens", "tokens"));
  EXPECT_FALSE(matches("tokens", "token"));
  EXPECT_FALSE(matches("token", "tokens"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("*", "a.b[2]"));
  EXPECT_TRUE(matches("meta.*", "meta.ids[2]"));
  EXPECT_FALSE(matches("meta.*", "meta"));
  EXPECT_TRUE(matches("*_ids", "position_ids"));
  EXPECT_TRUE(matches("a*b*c", "a-b-b-c"));
  EXPECT_FALSE(matches("a*b*c", "a-c-b"));
  EXPECT_TRUE(matches("**a**", "bab"));
  EXPECT_FALSE(matches("", "a"));
}

TEST(Pattern, MatchesFastWithManyStars) {
  const std::string path(2000, 'a');
  std::string pattern;
  for (int i = 0; i < 500; ++i) pattern += "*a";
  EXPECT_FALSE(matches(pattern + "b", path));
  EXPECT_TRUE(matches(pattern, path));
}

TEST(Layout, AppliesTheFirstMatchingRule) {
  Layout layout;
  layout.rules = {{"a.*", {Shard{"dp", 0}}}, {"*", {Shard{"dp", 1}}}};
  layout.otherwise = {Shard{"dp", 2}};
  EXPECT_EQ(layout.placements_of("a.b"), std::vector<Placement>{Placement(Shard{"dp", 0})});
  EXPECT_EQ(layout.placements_of("b"), std::vector<Placement>{Placement(Shard{"dp", 1})});
  layout.rules.pop_back();
  EXPECT_EQ(layout.placements_of("b"), std::vector<Placement>{Placement(Shard{"dp", 2})});
}

TEST(Layout, FitsMeshesThatLackTheUsualAxes) {
  for (const char* mesh : {"", "dp=2", "cp=2,tp=2", "pp=3,dp=2,cp=2,tp=2"}) {
    EXPECT_EQ(refusal_on_mesh(layouts::gpt(), mesh), "nothing was refused") << mesh;
    EXPECT_EQ(refusal_on_mesh(layouts::data_parallel(), mesh), "nothing was refused") << mesh;
  }
}

TEST(Layout, ExplainsAMismatchWithTheMesh) {
  Layout layout;
  layout.rules = {{"x", {Shard{"rows", 0}}}};
  EXPECT_THAT(refusal_on_mesh(layout, "dp=2"),
              HasSubstr("shard(rows,0), but the mesh has no axis rows (it is 'dp=2')"));
  EXPECT_EQ(refusal_on_mesh(layout, "rows=2"), "nothing was refused");
  layout.rules = {{"x", {Shard{"sp", 0}}}};
  EXPECT_EQ(refusal_on_mesh(layout, "dp=2"), "nothing was refused");

  layout.rules = {{"x", {Shard{"dp", 0}, Replicate{"dp"}}}};
  EXPECT_THAT(refusal_on_mesh(layout, "dp=2"), HasSubstr("field 'x' has two placements on axis dp"));
  layout.rules = {{"x", {}}, {"x", {}}};
  EXPECT_THAT(refusal_on_mesh(layout, ""), HasSubstr("two rules for 'x'"));
  layout.rules = {{"x", {Shard{"dp", 16}}}};
  EXPECT_THAT(refusal_on_mesh(layout, ""), HasSubstr("dimensions are counted from 0 to 15"));
  layout.rules = {{"x", {Zigzag{"dp", -1}}}};
  EXPECT_THAT(refusal_on_mesh(layout, ""), HasSubstr("dimensions are counted from 0 to 15"));
}

TEST(Layout, RejectsAnAxisWithAnUndecidedRole) {
  for (const Layout& layout : {layouts::gpt(), layouts::data_parallel(), Layout{}}) {
    EXPECT_THAT(refusal_on_mesh(layout, "dp=2,replica=2"),
                AllOf(HasSubstr("axis replica of the mesh 'dp=2,replica=2' may divide data or share it"),
                      HasSubstr("data_axes="), HasSubstr("replicate(replica)")));
    EXPECT_EQ(refusal_on_mesh(layout, "fsdp=2,ep=1,sp=2"), "nothing was refused");
    EXPECT_NO_THROW(layout.check(Mesh::parse("dp=2,replica=2", Mesh::Names{"dp", "replica"})));
  }
  Layout shared;
  shared.otherwise = {Replicate{"replica"}};
  EXPECT_EQ(refusal_on_mesh(shared, "dp=2,replica=2"), "nothing was refused");
}

TEST(Layout, RejectsADataAxisThatTheMeshNamesDifferently) {
  Layout layout;
  layout.rules = {{"x", {Shard{"data", 0}}}};
  EXPECT_THAT(refusal_on_mesh(layout, "fsdp=2"), HasSubstr("write dp, which stands for all its data axes"));
  EXPECT_EQ(refusal_on_mesh(layout, "data=2"), "nothing was refused");
  EXPECT_EQ(refusal_on_mesh(layout, "tp=2"), "nothing was refused");
}

TEST(Layout, TreatsDpAsAllDataAxes) {
  Layout layout;
  layout.rules = {{"x", {Shard{"dp", 0}, Shard{"fsdp", 1}}}};
  EXPECT_THAT(refusal_on_mesh(layout, "dp=2,fsdp=2"), HasSubstr("two placements on axis fsdp"));
}

TEST(Layout, ChecksItsStages) {
  Layout layout;
  layout.rules = {{"x", {Stages{"pp", {"first", "mtp"}}}}};
  EXPECT_THAT(refusal_on_mesh(layout, "pp=2"), HasSubstr("no stage mtp is defined"));
  layout.stages["mtp"] = {1};
  EXPECT_EQ(refusal_on_mesh(layout, "pp=2"), "nothing was refused");
  layout.stages["mtp"] = {1, 2};
  EXPECT_THAT(refusal_on_mesh(layout, "pp=2"), HasSubstr("stage mtp has coordinate 2, but pp has 2 stage(s)"));
  layout.stages["mtp"] = {-1};
  EXPECT_THAT(refusal_on_mesh(layout, "pp=2"), HasSubstr("coordinate -1"));
  layout.stages["mtp"] = {};
  EXPECT_EQ(refusal_on_mesh(layout, "pp=2"), "nothing was refused");
  layout.stages["first"] = {1};
  EXPECT_THAT(refusal_on_mesh(layout, "pp=2"), HasSubstr("stage first is built in"));
}

TEST(LayoutJson, RoundTrips) {
  Layout custom;
  custom.name = "mine";
  custom.rules = {{"z.*", {Stages{"pp", {"first", "mtp"}}, Shard{"dp", 0}, Zigzag{"cp", 3}}, false},
                  {"a\"\\\n", {Replicate{"tp"}}, true},
                  {"nothing", {}, false}};
  custom.otherwise = {Shard{"dp", 0}};
  custom.stages = {{"mtp", {1, 3}}, {"none", {}}};
  for (const Layout& layout : {custom, layouts::gpt(), layouts::gpt({.attention_mask = true, .mtp_stages = {2}}),
                               layouts::gpt({.broadcast_all_keys = true}), layouts::data_parallel(), Layout{}}) {
    EXPECT_EQ(Layout::from_json(layout.to_json()), layout) << layout.to_json();
  }
}

TEST(LayoutJson, RequiresOnlyFields) {
  const Layout layout = Layout::from_json(R"j({"fields": {"tokens": ["shard(dp,0)"]}})j");
  EXPECT_EQ(layout.name, "custom");
  EXPECT_EQ(layout.rules, (std::vector<Layout::Rule>{{"tokens", {Shard{"dp", 0}}, true}}));
  EXPECT_TRUE(layout.otherwise.empty());
}

TEST(LayoutJson, NamesTheErrorAndItsPlace) {
  EXPECT_THAT(refusal_of_json(""), HasSubstr("line 1, column 1"));
  EXPECT_THAT(refusal_of_json("{\"fields\":\n {]}"), HasSubstr("line 2, column 3"));
  EXPECT_THAT(refusal_of_json("[]"), HasSubstr("expected an object, got array"));
  EXPECT_THAT(refusal_of_json("{}"), HasSubstr("\"fields\" is missing"));
  EXPECT_THAT(refusal_of_json(R"({"fields": [], "x": 1})"), HasSubstr("\"x\": unknown key"));
  EXPECT_THAT(refusal_of_json(R"({"fields": []})"), HasSubstr("fields: expected an object, got array"));
  EXPECT_THAT(refusal_of_json(R"j({"fields": {"t": "shard(dp,0)"}})j"), HasSubstr("fields[\"t\"]: expected a list"));
  EXPECT_THAT(refusal_of_json(R"j({"fields": {"t": ["shard(dp,0)", 1]}})j"),
              HasSubstr("fields[\"t\"][1]: expected a string, got number"));
  EXPECT_THAT(refusal_of_json(R"j({"fields": {"t": ["shard(dp)"]}})j"),
              HasSubstr("fields[\"t\"][0]: 'shard(dp)' is not a placement"));
  EXPECT_THAT(refusal_of_json(R"({"fields": {}, "name": 1})"), HasSubstr("name: expected a string"));
  EXPECT_THAT(refusal_of_json(R"({"fields": {}, "optional": ["t"]})"), HasSubstr("\"t\" is not among the fields"));
  EXPECT_THAT(refusal_of_json(R"({"fields": {}, "optional": [null]})"), HasSubstr("optional[0]: expected a string"));
  EXPECT_THAT(refusal_of_json(R"({"fields": {}, "otherwise": {}})"), HasSubstr("otherwise: expected a list"));
  EXPECT_THAT(refusal_of_json(R"({"fields": {}, "stages": {"a": 1}})"), HasSubstr("stages[\"a\"]: expected a list"));
  EXPECT_THAT(refusal_of_json(R"({"fields": {}, "stages": {"": []}})"), HasSubstr("a stage name consists of letters"));
  for (const char* number : {"-1", "1.5", "2147483648", "1e99", "99999999999999999999", "\"1\"", "null"}) {
    const auto text = std::string(R"({"fields": {}, "stages": {"a": [0, )") + number + "]}}";
    EXPECT_THAT(refusal_of_json(text), HasSubstr("stages[\"a\"][1]: expected a coordinate")) << number;
  }
}

TEST(LayoutJson, RejectsDuplicateKeys) {
  EXPECT_THAT(refusal_of_json(R"({"fields": {"t": [], "t": []}})"), HasSubstr("key \"t\" appears twice"));
  EXPECT_THAT(refusal_of_json(R"({"fields": {}, "fields": {}})"), HasSubstr("key \"fields\" appears twice"));
  EXPECT_EQ(refusal_of_json(R"({"fields": {"name": []}, "name": "n"})"), "nothing was refused");
}

TEST(LayoutJson, LimitsItsDepth) {
  for (const char* open : {"[", "{\"fields\":"}) {
    std::string deep;
    for (int i = 0; i < 200'000; ++i) deep += open;
    EXPECT_THAT(refusal_of_json(deep), HasSubstr("nests deeper"));
  }
}

TEST(LayoutJson, RejectsInvalidUtf8) {
  EXPECT_THAT(refusal_of_json("{\"fields\": {\"\xff\": []}}"), HasSubstr("line 1"));
}

bool requires_mask(const Layout& layout) {
  return std::ranges::find(layout.rules, "attention_mask", &Layout::Rule::pattern)->required;
}

TEST(GptLayout, MaskIsOptionalByDefault) {
  EXPECT_FALSE(requires_mask(layouts::gpt()));
  EXPECT_TRUE(requires_mask(layouts::gpt({.attention_mask = true})));
}

}  // namespace
}  // namespace levada
