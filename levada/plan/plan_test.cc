#include "levada/plan/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "levada/base/refusal_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Names = std::set<std::string>;
const Names everything = {"tokens", "labels", "loss_mask", "position_ids", "attention_mask"};

std::vector<Field> gpt_fields(std::int64_t batch, std::int64_t sequence, bool mask = true) {
  const Shape shape{batch, sequence};
  std::vector<Field> fields = {{"tokens", dtypes::int64, shape},
                               {"labels", dtypes::int64, shape},
                               {"loss_mask", dtypes::float32, shape},
                               {"position_ids", dtypes::int64, shape}};
  if (mask) fields.push_back({"attention_mask", dtypes::boolean, Shape{batch, 1, sequence, sequence}});
  return fields;
}

/// Returns the names of the fields that reach a rank.
Names fields_at(const Plan& plan, int rank) {
  Names names;
  for (const Move& move : plan.moves) {
    const auto& to = plan.audiences[static_cast<std::size_t>(move.audience)].to;
    if (std::find(to.begin(), to.end(), rank) != to.end()) {
      names.insert(plan.fields[static_cast<std::size_t>(move.field)].path);
    }
  }
  return names;
}

Plan gpt_plan(std::string_view mesh, const layouts::GptOptions& gpt = {}, const FanOutOptions& options = {}) {
  return plan_fan_out(gpt_fields(4, 8), layouts::gpt(gpt), Mesh::parse(mesh), options);
}

std::string refusal_of(const std::vector<Field>& fields, const Layout& layout, std::string_view mesh,
                       const FanOutOptions& options = {}) {
  return refusal([&] { plan_fan_out(fields, layout, Mesh::parse(mesh), options); });
}

FanOutOptions split() {
  FanOutOptions options;
  options.divide = Divide::split;
  return options;
}

FanOutOptions read_by(std::string_view readers, std::vector<int> host_of = {}) {
  FanOutOptions options;
  options.readers = Readers::parse(readers);
  options.host_of = std::move(host_of);
  return options;
}

TEST(GptStages, MatchMegatronsStages) {
  const Plan plan = gpt_plan("pp=4");
  EXPECT_EQ(fields_at(plan, 0), (Names{"tokens", "position_ids", "attention_mask"}));
  EXPECT_THAT(fields_at(plan, 1), IsEmpty());
  EXPECT_THAT(fields_at(plan, 2), IsEmpty());
  EXPECT_EQ(fields_at(plan, 3), (Names{"labels", "loss_mask", "attention_mask"}));
}

TEST(GptStages, GetEverythingIfThereIsOnlyOne) {
  EXPECT_EQ(fields_at(gpt_plan("pp=1"), 0), everything);
  EXPECT_EQ(fields_at(gpt_plan("dp=2"), 1), everything);
}

TEST(GptStages, GetEverythingIfTheyHostMtp) {
  const Plan last = gpt_plan("pp=3", {.mtp_stages = {2}});
  EXPECT_EQ(fields_at(last, 0), (Names{"tokens", "position_ids", "attention_mask"}));
  EXPECT_THAT(fields_at(last, 1), IsEmpty());
  EXPECT_EQ(fields_at(last, 2), everything);

  const Plan middle = gpt_plan("pp=4", {.mtp_stages = {2}});
  EXPECT_THAT(fields_at(middle, 1), IsEmpty());
  EXPECT_EQ(fields_at(middle, 2), everything);
  EXPECT_EQ(fields_at(middle, 3), (Names{"labels", "loss_mask", "attention_mask"}));
}

TEST(GptStages, AllGetEverythingIfAllKeysAreBroadcast) {
  const Plan plan = gpt_plan("pp=3", {.broadcast_all_keys = true, .mtp_stages = {1}});
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(fields_at(plan, rank), everything);
}

TEST(GptStages, AreTheSameFromJson) {
  const auto text = R"j({"fields": {"tokens": ["stages(pp,first,mtp)"], "labels": ["stages(pp,last,mtp)"]},
                         "stages": {"mtp": [1]}})j";
  const Plan plan = plan_fan_out({{"tokens", dtypes::int64, {4}}, {"labels", dtypes::int64, {4}}},
                                 Layout::from_json(text), Mesh::parse("pp=4"), {});
  EXPECT_EQ(fields_at(plan, 0), Names{"tokens"});
  EXPECT_EQ(fields_at(plan, 1), (Names{"tokens", "labels"}));
  EXPECT_THAT(fields_at(plan, 2), IsEmpty());
  EXPECT_EQ(fields_at(plan, 3), Names{"labels"});
}

TEST(GptLayout, CutsTheMaskAlongItsQueries) {
  const Plan plan = gpt_plan("cp=2");
  const auto moves = plan.moves_of(1);
  EXPECT_EQ(moves[0].region.to_string(), "[0:4, 2:6]");
  EXPECT_EQ(moves[4].region.to_string(), "[0:4, 0:1, 2:6, 0:8]");
  EXPECT_EQ(plan.moves_of(0)[0].region.to_string(), "[0:4, 0:2 6:8]");
}

TEST(GptLayout, SendsOtherFieldsToEveryRank) {
  auto fields = gpt_fields(4, 8);
  fields.push_back({"extra", dtypes::float32, {3}});
  const Plan plan = plan_fan_out(fields, layouts::gpt(), Mesh::parse("pp=3,cp=2"), {});
  for (int rank = 0; rank < 6; ++rank) EXPECT_TRUE(fields_at(plan, rank).contains("extra"));
}

TEST(Audiences, AreRanksWithTheSameNeeds) {
  const auto of = [](std::string_view mesh, const FanOutOptions& options) {
    return fan_out_audiences(layouts::gpt(), Mesh::parse(mesh), options);
  };
  EXPECT_THAT(of("dp=2,tp=2", {}), ElementsAre(Audience{0, {0, 1}, 0}, Audience{0, {2, 3}, 1}));
  EXPECT_THAT(of("dp=2,tp=2", split()), ElementsAre(Audience{0, {0, 1}, 0}, Audience{0, {2, 3}, 0}));
  EXPECT_THAT(of("cp=2,tp=2", {}), ElementsAre(Audience{0, {0, 1}, 0}, Audience{0, {2, 3}, 0}));
  EXPECT_THAT(of("dp=2,tp=2", read_by("dp")), ElementsAre(Audience{0, {0, 1}, 0}, Audience{2, {2, 3}, 1}));
  EXPECT_THAT(of("dp=2,tp=2", read_by("all")),
              ElementsAre(Audience{0, {0}, 0}, Audience{1, {1}, 0}, Audience{2, {2}, 1}, Audience{3, {3}, 1}));
}

TEST(Audiences, JoinStagesWithTheSameNeeds) {
  EXPECT_THAT(fan_out_audiences(layouts::gpt(), Mesh::parse("pp=4"), {}),
              ElementsAre(Audience{0, {0}, 0}, Audience{0, {1, 2}, 0}, Audience{0, {3}, 0}));
  // Stages that need nothing form one audience regardless of their coordinate along cp.
  EXPECT_THAT(fan_out_audiences(layouts::gpt(), Mesh::parse("pp=3,cp=2"), {}),
              ElementsAre(Audience{0, {0}, 0}, Audience{0, {1}, 0}, Audience{0, {2, 3}, 0}, Audience{0, {4}, 0},
                          Audience{0, {5}, 0}));
}

TEST(Audiences, AreFoundByReaderAndUnit) {
  const auto all = fan_out_audiences(layouts::gpt(), Mesh::parse("dp=4,cp=2,tp=2"), read_by("tp"));
  std::size_t found = 0;
  for (int from = -1; from < 17; ++from) {
    std::size_t of_reader = 0;
    for (int unit = -1; unit < 5; ++unit) {
      for (const Audience& audience : audiences_of(all, from, unit)) {
        EXPECT_EQ(audience.from, from);
        EXPECT_EQ(audience.unit, unit);
        ++of_reader;
      }
    }
    EXPECT_EQ(audiences_of(all, from).size(), of_reader);
    found += of_reader;
  }
  EXPECT_EQ(found, all.size());
}

TEST(Readers, RoundTripThroughText) {
  for (const char* text : {"one", "all", "host", "spread", "dp", "dp,pp"})
    EXPECT_EQ(Readers::parse(text).to_string(), text);
  EXPECT_THAT(refusal([] { Readers::parse(""); }), HasSubstr("'' is not an axis"));
  EXPECT_THAT(refusal([] { Readers::parse("dp,"); }), HasSubstr("'' is not an axis"));
  EXPECT_THAT(refusal([] { Readers::parse("dp,dp"); }), HasSubstr("dp appears twice"));
}

TEST(Readers, ReadForTheRanksAtTheirCoordinates) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2,pp=2");
  EXPECT_THAT(Readers::parse("one").of(mesh), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Readers::parse("all").of(mesh), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(Readers::parse("dp").of(mesh), ElementsAre(0, 0, 0, 0, 4, 4, 4, 4));
  EXPECT_THAT(Readers::parse("pp,dp").of(mesh), ElementsAre(0, 1, 0, 1, 4, 5, 4, 5));
  EXPECT_THAT(Readers::parse("cp").of(mesh), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(refusal([&] { Readers::parse("rows").of(mesh); }), HasSubstr("'rows'"));
}

TEST(Readers, AreSpreadOverTheHostsOfTheirCoordinates) {
  const auto readers_on = [](const char* mesh, int hosts) {
    const Mesh parsed = Mesh::parse(mesh);
    std::vector<int> host_of, counts(static_cast<std::size_t>(hosts), 0);
    for (int rank = 0; rank < parsed.size(); ++rank) host_of.push_back(rank * hosts / parsed.size());
    const auto readers = Readers::parse("spread").of(parsed, host_of);
    for (int rank = 0; rank < parsed.size(); ++rank) {
      const auto reader = readers[static_cast<std::size_t>(rank)];
      EXPECT_EQ(parsed.data_coordinate(reader), parsed.data_coordinate(rank));
      EXPECT_EQ(readers[static_cast<std::size_t>(reader)], reader);
      if (reader == rank) ++counts[static_cast<std::size_t>(host_of[static_cast<std::size_t>(rank)])];
    }
    return counts;
  };
  EXPECT_THAT(readers_on("pp=4,dp=8", 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(readers_on("dp=8,tp=4", 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(readers_on("pp=8,dp_replicate=2,dp_shard=2,tp=2", 8), ElementsAre(1, 1, 1, 1, 0, 0, 0, 0));
  EXPECT_THAT(readers_on("tp=8,pp=2", 2), ElementsAre(1, 0));

  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  EXPECT_THAT(Readers::parse("spread").of(mesh, std::vector{7, 7, 7, 7}), ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(refusal([&] { Readers::parse("spread").of(mesh); }),
              HasSubstr("host of each of 4 ranks, but only 0 are known"));
}

TEST(SegmentDivisor, IsTheNumberOfChunksOfAFieldsZigzags) {
  const auto divisor = [](const Layout& layout, const char* mesh) {
    return segment_divisor(layout, Mesh::parse(mesh), "tokens");
  };
  EXPECT_EQ(divisor(layouts::gpt(), "dp=2,cp=3"), 6);
  EXPECT_EQ(divisor(layouts::gpt(), "dp=2,tp=2"), 1);
  Layout layout;
  layout.rules = {{"tok*", {Zigzag{"cp", 1}, Zigzag{"sp", 1}}}};
  EXPECT_EQ(divisor(layout, "cp=2,sp=2"), 16);
  layout.rules = {{"labels", {Zigzag{"cp", 1}}}};
  EXPECT_EQ(divisor(layout, "cp=2"), 1);
}

TEST(Readers, ReadForTheirHost) {
  const Mesh mesh = Mesh::parse("dp=5");
  const std::vector<int> host_of = {7, 3, 7, 3, 0};
  EXPECT_THAT(Readers::parse("host").of(mesh, host_of), ElementsAre(0, 1, 0, 1, 4));
  EXPECT_THAT(refusal([&] { Readers::parse("host").of(mesh); }),
              HasSubstr("host of each of 5 ranks, but only 0 are known"));
}

TEST(PlanFanOut, DealsAlongAllDataAxesWithAnyNames) {
  for (const auto divide : {Divide::deal, Divide::split}) {
    for (const char* readers : {"one", "all", "dp", "dp,tp"}) {
      auto options = read_by(readers);
      options.divide = divide;
      const Plan expected = gpt_plan("dp=4,tp=2", {}, options);
      for (const char* mesh :
           {"data=4,tp=2", "fsdp=4,tp=2", "ddp=4,tp=2", "dp_replicate=2,dp_shard=2,tp=2", "dp=2,fsdp=2,tp=2"}) {
        const Plan plan = gpt_plan(mesh, {}, options);
        EXPECT_EQ(plan.audiences, expected.audiences) << mesh << " read by " << readers;
        EXPECT_EQ(plan.moves, expected.moves) << mesh << " read by " << readers;
      }
    }
  }
}

TEST(PlanFanOut, DealsAlongNonAdjacentDataAxes) {
  const Mesh mesh = Mesh::parse("dp_replicate=2,tp=2,dp_shard=2");
  for (const Audience& audience : fan_out_audiences(layouts::gpt(), mesh, {})) {
    EXPECT_EQ(audience.to.size(), 2u);
    for (const int rank : audience.to) EXPECT_EQ(audience.unit, mesh.data_coordinate(rank));
  }
  EXPECT_THAT(Readers::parse("dp").of(mesh), ElementsAre(0, 1, 0, 1, 4, 5, 4, 5));
  EXPECT_THAT(Readers::parse("dp_shard").of(mesh), ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
}

TEST(PlanFanOut, SplitsAShortGlobalBatchAlongAllDataAxes) {
  auto options = split();
  options.short_samples = 5;
  options.part_samples = 2;
  const auto plan = plan_fan_out({{"x", dtypes::int64, {5, 4}}}, layouts::data_parallel(),
                                 Mesh::parse("dp_replicate=2,dp_shard=2"), options);
  std::vector<std::uint64_t> rows;
  for (const auto bytes : plan.bytes_by_rank()) rows.push_back(bytes / 32);
  EXPECT_THAT(rows, ElementsAre(2, 2, 1, 0));
}

TEST(PlanFanOut, RequiresThePartSizeForAShortGlobalBatch) {
  auto options = split();
  options.short_samples = 5;
  EXPECT_THAT(refusal_of({{"x", dtypes::int64, {5, 4}}}, layouts::data_parallel(), "dp=2", options),
              HasSubstr("part_samples, the samples in a full part, must be"));
}

TEST(PlanFanOut, CutsFieldsOfOtherExtentsEvenlyInAShortGlobalBatch) {
  auto options = split();
  options.short_samples = 5;
  options.part_samples = 4;
  const std::vector<Field> fields{{"x", dtypes::int64, {5}}, {"scales", dtypes::int64, {2}}};
  const auto plan = plan_fan_out(fields, layouts::data_parallel(), Mesh::parse("dp=2"), options);
  EXPECT_THAT(plan.bytes_by_rank(), ElementsAre(8 * (4 + 1), 8 * (1 + 1)));
  EXPECT_THAT(
      refusal_of({{"x", dtypes::int64, {5}}, {"odd", dtypes::int64, {3}}}, layouts::data_parallel(), "dp=2", options),
      HasSubstr("odd has 3 along dim 0, which dp=2 does not divide"));
}

TEST(PlanFanOut, CutsTheSharesOfAShortGlobalBatchOnlyIfEachDivides) {
  auto options = split();
  options.part_samples = 4;
  const auto refusal = [&](std::int64_t samples, const char* first, const char* then) {
    Layout layout;
    layout.otherwise = {parse_placement(first), parse_placement(then)};
    options.short_samples = samples;
    return refusal_of({{"x", dtypes::int64, {samples}}}, layout, "dp=2,tp=2", options);
  };
  EXPECT_THAT(refusal(6, "shard(dp,0)", "shard(tp,0)"), HasSubstr("nothing was refused")) << "shares of 4 and 2";
  EXPECT_THAT(refusal(7, "shard(dp,0)", "shard(tp,0)"), HasSubstr("which tp=2 does not divide")) << "shares of 4 and 3";
  EXPECT_THAT(refusal(3, "shard(dp,0)", "shard(tp,0)"), HasSubstr("which tp=2 does not divide")) << "one share of 3";
  EXPECT_THAT(refusal(6, "shard(tp,0)", "shard(dp,0)"), HasSubstr("nothing was refused"))
      << "halves of 3, in shares of 2 and 1";
}

TEST(PlanFanOut, RejectsDealingFieldsReplicatedAlongTheDataAxes) {
  Layout layout;
  layout.rules = {{"x", {Replicate{"dp"}}}};
  EXPECT_THAT(refusal_of({{"x", dtypes::int64, {4, 4}}}, layout, "fsdp=2"),
              HasSubstr("replicate(dp), but whole batches are dealt"));
  EXPECT_EQ(refusal_of({{"x", dtypes::int64, {4, 4}}}, layout, "fsdp=2", split()), "nothing was refused");
}

TEST(PlanFanOut, NamesAMissingRequiredField) {
  auto fields = gpt_fields(4, 8);
  fields.erase(fields.begin() + 1);
  EXPECT_THAT(refusal_of(fields, layouts::gpt(), "dp=2"),
              HasSubstr("the batch has no field labels, which layout gpt requires; it has tokens, loss_mask"));
  EXPECT_THAT(refusal_of(gpt_fields(4, 8, false), layouts::gpt({.attention_mask = true}), "dp=2"),
              HasSubstr("no field attention_mask"));
  EXPECT_EQ(refusal_of(gpt_fields(4, 8, false), layouts::gpt(), "dp=2"), "nothing was refused");
  EXPECT_THAT(refusal_of({}, layouts::gpt(), ""), HasSubstr("it has nothing"));
}

TEST(PlanFanOut, NamesAnIndivisibleExtent) {
  EXPECT_EQ(refusal_of(gpt_fields(4, 1022), layouts::gpt(), "cp=2"),
            "tokens has 1022 along dim 1, which 2*cp=4 does not divide; choose --seq as a multiple of 4");
  EXPECT_EQ(refusal_of(gpt_fields(5, 8), layouts::gpt(), "dp=2", split()),
            "tokens has 5 along dim 0, which dp=2 does not divide; choose a global batch that is a multiple of 2");
  EXPECT_EQ(refusal_of(gpt_fields(5, 8), layouts::gpt(), "dp=2"), "nothing was refused");

  Layout layout;
  layout.rules = {{"x", {Zigzag{"cp", 1}, Shard{"tp", 1}}}};
  EXPECT_EQ(refusal_of({{"x", dtypes::int64, {1, 12}}}, layout, "cp=2,tp=4"),
            "x has 12 along dim 1 (6 of it in a part so far), which tp=4 does not divide; choose an extent that is a "
            "multiple of 16");
}

TEST(PlanFanOut, NeedsNoDivisibilityAlongAnAxisOfSizeOne) {
  EXPECT_EQ(refusal_of(gpt_fields(3, 7), layouts::gpt(), "dp=1,cp=1,tp=3", split()), "nothing was refused");
}

TEST(PlanFanOut, NamesAFieldThatLacksADimension) {
  Layout layout;
  layout.rules = {{"x*", {Shard{"tp", 1}}}};
  EXPECT_THAT(refusal_of({{"x1", dtypes::int64, {4}}}, layout, "tp=2"),
              HasSubstr("x1 has 1 dimension(s), so that shard(tp,1) cannot cut it along dim 1"));
}

TEST(PlanFanOut, OtherwiseCutsOnlyExistingDimensions) {
  const Plan plan = plan_fan_out({{"step", dtypes::int64, {}}, {"x", dtypes::int64, {4}}}, layouts::data_parallel(),
                                 Mesh::parse("dp=2"), split());
  EXPECT_EQ(plan.moves_of(1)[0].region, Region(Shape{}));
  EXPECT_EQ(plan.moves_of(1)[1].region.to_string(), "[2:4]");
}

TEST(PlanFanOut, RejectsCutsOfPackedElements) {
  Layout layout;
  layout.otherwise = {Shard{"tp", 0}};
  const std::vector<Field> fields = {{"x", dtypes::float4_e2m1fn, {4}}};
  EXPECT_THAT(refusal_of(fields, layout, "tp=2"),
              HasSubstr("x is float4_e2m1fn, whose elements do not begin on bytes"));
  EXPECT_EQ(refusal_of(fields, layout, "tp=1"), "nothing was refused");
  EXPECT_EQ(refusal_of(fields, layouts::gpt({}), "tp=2").substr(0, 12), "the batch ha");
}

TEST(PlanFanOut, RejectsFieldsThatPackedSequencesCannotDivide) {
  // Two rows of the sequences [0, 4) and [4, 8).
  const FieldSegments packed{
      .boundaries = std::make_shared<Segments>(Segments{.rows = 2, .entries = 3, .positions = {0, 4, 8, 0, 4, 8}}),
      .path = "cu_seqlens",
      .differs_from = {}};
  const auto refused = [&](const Shape& shape, std::vector<Placement> cuts, std::string_view mesh = "cp=2,tp=2") {
    Layout layout;
    layout.rules = {{"x", std::move(cuts)}};
    return refusal_of({{.path = "x", .dtype = dtypes::int64, .shape = shape, .segments = packed}}, layout, mesh);
  };
  const auto cannot = [](std::string_view shape) {
    return HasSubstr(fmt::format("x of shape {} cannot be divided by zigzag(cp", shape));
  };
  EXPECT_EQ(refused({2, 8}, {Zigzag{"cp", 1}}), "nothing was refused");
  EXPECT_EQ(refused({2, 8, 4}, {Zigzag{"cp", 1}, Shard{"tp", 2}}), "nothing was refused");
  EXPECT_THAT(refused({8}, {Zigzag{"cp", 0}}), cannot("[8]"));                        // rows are missing
  EXPECT_THAT(refused({3, 8}, {Zigzag{"cp", 1}}), cannot("[3, 8]"));                  // another number of rows
  EXPECT_THAT(refused({2, 1, 8}, {Zigzag{"cp", 2}}), cannot("[2, 1, 8]"));            // the rows are not the dim before
  EXPECT_THAT(refused({2, 8}, {Zigzag{"cp", 1}, Shard{"tp", 1}}), cannot("[2, 8]"));  // a second cut of the dim
  EXPECT_THAT(refused({2, 10}, {Zigzag{"cp", 1}}), HasSubstr("cu_seqlens of row 0 must run from 0 to 10"));
  EXPECT_THAT(refused({2, 8}, {Zigzag{"cp", 1}}, "cp=4"), HasSubstr("packed sequence 0 of row 0 has 4 positions"));
}

TEST(PlanFanOut, RejectsDealingFieldsCutAlongTheDataAxis) {
  Layout layout;
  layout.rules = {{"x", {Shard{"dp", 1}}}};
  EXPECT_THAT(refusal_of({{"x", dtypes::int64, {4, 4}}}, layout, "dp=2"), HasSubstr("shard(dp,1), but whole batches"));
  EXPECT_EQ(refusal_of({{"x", dtypes::int64, {4, 4}}}, layout, "dp=2", split()), "nothing was refused");
}

TEST(PlanFanOut, SendsPlainValuesWholeToTheirStages) {
  Layout layout;
  layout.rules = {{"name", {Shard{"dp", 0}, Zigzag{"cp", 1}, Stages{"pp", {"last"}}}}};
  const Plan plan = plan_fan_out({{"name", {}, {}}}, layout, Mesh::parse("dp=2,cp=2,pp=2"), split());
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(fields_at(plan, rank).size(), static_cast<std::size_t>(rank % 2));
  EXPECT_EQ(plan.bytes_delivered(), 0u);
}

TEST(PlanFanOut, SendsEmptyTensors) {
  const Plan plan =
      plan_fan_out({{"x", dtypes::int64, {0, 4}}}, layouts::data_parallel(), Mesh::parse("dp=2"), split());
  ASSERT_EQ(plan.moves.size(), 2u);
  EXPECT_EQ(plan.moves[1].bytes, 0u);
  EXPECT_EQ(plan.moves[1].region.shape(), (Shape{0, 4}));
}

TEST(PlanUnit, ReturnsTheMovesOfThePlan) {
  const Mesh mesh = Mesh::parse("dp=3,cp=2,pp=3");
  const Plan plan = plan_fan_out(gpt_fields(2, 8), layouts::gpt(), mesh, {});
  std::vector<Move> moves;
  for (int unit = 0; unit < 3; ++unit) {
    const auto audiences = audiences_of(plan.audiences, 0, unit);
    const int before = static_cast<int>(audiences.data() - plan.audiences.data());
    for (Move move : plan_unit(plan.fields, layouts::gpt(), mesh, audiences, {})) {
      move.audience += before;
      moves.push_back(std::move(move));
    }
  }
  EXPECT_EQ(moves, plan.moves);
}

TEST(Plan, CountsItsBytes) {
  // Two samples of 8: tokens, labels and position_ids 128 bytes each, loss_mask 64.
  const Plan plan = plan_fan_out(gpt_fields(2, 8, false), layouts::gpt(), Mesh::parse("dp=2,tp=2"), {});
  EXPECT_EQ(plan.bytes_sent(), 2u * 448);
  EXPECT_EQ(plan.bytes_delivered(), 4u * 448);
  EXPECT_THAT(plan.bytes_by_rank(), ::testing::Each(448u));
  EXPECT_EQ(plan.peak_bytes(), 2u * 448 + 2u * 448);
  const Plan by_dp = plan_fan_out(gpt_fields(2, 8, false), layouts::gpt(), Mesh::parse("dp=2,tp=2"), read_by("dp"));
  EXPECT_EQ(by_dp.peak_bytes(), 2u * 448);
}

TEST(Plan, PrintsATableForPeople) {
  const Plan plan = plan_fan_out(gpt_fields(8, 1024, false), layouts::gpt(), Mesh::parse("dp=1,cp=2,tp=3,pp=3"), {});
  EXPECT_EQ("\n" + plan.to_table(), R"(
reader  batch  ranks     field         dtype    part                   shape        bytes
-----------------------------------------------------------------------------------------
     0      0  0,3,6     tokens        int64    [0:8, 0:256 768:1024]  [8, 512]  32.0 KiB
                         position_ids  int64    [0:8, 0:256 768:1024]  [8, 512]  32.0 KiB
     0      0  1-16/3    (nothing)                                                    0 B
     0      0  2,5,8     labels        int64    [0:8, 0:256 768:1024]  [8, 512]  32.0 KiB
                         loss_mask     float32  [0:8, 0:256 768:1024]  [8, 512]  16.0 KiB
     0      0  9,12,15   tokens        int64    [0:8, 256:768]         [8, 512]  32.0 KiB
                         position_ids  int64    [0:8, 256:768]         [8, 512]  32.0 KiB
     0      0  11,14,17  labels        int64    [0:8, 256:768]         [8, 512]  32.0 KiB
                         loss_mask     float32  [0:8, 256:768]         [8, 512]  16.0 KiB

sent        224.0 KiB  in 5 messages from 1 reader
delivered   672.0 KiB  to 18 ranks, 0 B to 64.0 KiB each: exactly what they need
whole         3.9 MiB  if every rank received its whole batch
peak        448.0 KiB  at a reader: its batches of a step and their messages
)");
}

TEST(Plan, KeepsItsListsOfRanksShort) {
  const auto ranks_in_table = [](std::string_view mesh, const FanOutOptions& options) {
    Layout layout;
    layout.rules = {{"x", {Stages{"pp", {"first"}}}}};
    const Plan plan = plan_fan_out({{"x", dtypes::int64, {1}}}, layout, Mesh::parse(mesh), options);
    return plan.to_table();
  };
  EXPECT_THAT(ranks_in_table("pp=2,tp=8", {}), HasSubstr("  0-7    x"));
  EXPECT_THAT(ranks_in_table("tp=8,pp=2", {}), HasSubstr("  0-14/2  x"));
  EXPECT_THAT(ranks_in_table("tp=8,pp=9", {}),
              HasSubstr("  1-8,10-17,19-26,28-35,37-44,46-53,... (64 ranks)  (nothing)"));
}

TEST(Plan, PrintsJsonForPrograms) {
  const Plan plan = plan_fan_out(gpt_fields(4, 8, false), layouts::gpt(), Mesh::parse("dp=2,cp=2"), read_by("dp"));
  const auto json = nlohmann::json::parse(plan.to_json());
  EXPECT_EQ(json["mesh"], "dp=2,cp=2");
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["fields"][2], nlohmann::json::parse(R"({"path": "loss_mask", "dtype": "float32", "shape": [4, 8]})"));
  EXPECT_EQ(json["audiences"][3], nlohmann::json::parse(R"({"from": 2, "to": [3], "unit": 1})"));
  EXPECT_EQ(
      json["moves"][0],
      nlohmann::json::parse(R"({"audience": 0, "field": 0, "region": [[[0, 4]], [[0, 2], [6, 8]]], "bytes": 128})"));
  EXPECT_EQ(json["bytes_sent"], plan.bytes_sent());
  EXPECT_EQ(json["bytes_delivered"], plan.bytes_delivered());
  EXPECT_EQ(json["bytes_if_whole"], 4 * 896);
  EXPECT_EQ(json["peak_bytes"], plan.peak_bytes());
  EXPECT_EQ(json["edges"],
            nlohmann::json::parse(R"([{"from": 0, "to": 0, "bytes": 448}, {"from": 0, "to": 1, "bytes": 448},
                                                   {"from": 2, "to": 2, "bytes": 448}, {"from": 2, "to": 3, "bytes": 448}])"));
}

}  // namespace
}  // namespace levada
