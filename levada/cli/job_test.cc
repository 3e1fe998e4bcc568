#include "levada/cli/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada::cli {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const JobArguments& arguments, std::optional<int> world_size = {}) {
  try {
    parse_job(arguments, world_size);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(ParseJob, WithoutAMeshTheJobHasOneRank) {
  EXPECT_EQ(parse_job({}).mesh.size(), 1);
}

TEST(ParseJob, WithoutAMeshAllRanksOfTheJobAreDataParallel) {
  EXPECT_EQ(parse_job({}, 4).mesh, Mesh::parse("dp=4"));
}

TEST(ParseJob, HasTheFieldsOfACorpus) {
  const auto job = parse_job({.batch = 2, .sequence = 16, .attention_mask = true});
  ASSERT_EQ(job.fields.size(), 5u);
  EXPECT_EQ(job.fields.front(), (Field{"tokens", dtypes::int64, {2, 16}}));
  EXPECT_EQ(job.fields.back(), (Field{"attention_mask", dtypes::boolean, {2, 1, 16, 16}}));
}

TEST(ParseJob, RejectsAMeshOfAnotherSizeThanTheJob) {
  EXPECT_THAT(refusal_of({.mesh = "dp=2,tp=2"}, 8), HasSubstr("dp=2,tp=2 has 4 ranks, but this job has 8"));
}

TEST(ParseJob, RejectsASequenceThatZigzagCannotCut) {
  EXPECT_THAT(refusal_of({.mesh = "cp=2", .sequence = 66}), HasSubstr("66"));
}

TEST(ParseJob, RejectsAnUnknownLayout) {
  EXPECT_THAT(refusal_of({.layout = "bert"}), HasSubstr("unknown layout bert"));
}

TEST(ParseJob, NamesAnUnreadableLayoutFile) {
  EXPECT_THAT(refusal_of({.layout = "/nowhere/mine.json"}), HasSubstr("/nowhere/mine.json"));
}

TEST(ParseJob, RejectsABatchBelowOne) {
  EXPECT_THAT(refusal_of({.batch = 0}), HasSubstr("--batch is 0"));
}

TEST(ParseJob, HostReadersArePlannedForOneHost) {
  const auto plan = parse_job({.mesh = "dp=2,tp=2", .readers = "host"}).plan();
  for (const auto& audience : plan.audiences) EXPECT_EQ(audience.from, 0);
}

}  // namespace
}  // namespace levada::cli
