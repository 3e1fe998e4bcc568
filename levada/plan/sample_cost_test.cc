#include "levada/plan/sample_cost.h"

#include <gmock/gmock.h>

#include "levada/base/error.h"

namespace levada {
namespace {

using testing::HasSubstr;

template <typename F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

TEST(SampleCost, TokensCostTheirNumber) {
  EXPECT_EQ(SampleCost::parse("tokens").of({.tokens = 7, .squares = 49, .weights = {3, 4}}), (Work{.first = 7}));
}

TEST(SampleCost, FlopsAreLinearInTokensAndTheirSquares) {
  const SampleSize two_segments{.tokens = 5, .squares = 13};
  EXPECT_EQ(SampleCost::parse("flops(linear=100,quadratic=10)").of(two_segments), (Work{.first = 630}));
  EXPECT_EQ(SampleCost::parse("flops").of(two_segments), (Work{.first = 24576 * 5 + 13}));
  EXPECT_EQ(SampleCost::parse("flops(hidden=8192)").of(two_segments), (Work{.first = 49152 * 5 + 13}));
}

TEST(SampleCost, WeightsAreTheTwoParts) {
  EXPECT_EQ(SampleCost::parse("weights").of({.tokens = 7, .weights = {3, 4}}), (Work{3, 4}));
}

TEST(SampleCost, RoundTripsThroughText) {
  for (const char* text : {"tokens", "weights", "flops", "flops(hidden=1)", "flops(linear=0,quadratic=9)"}) {
    const auto cost = SampleCost::parse(text);
    EXPECT_EQ(SampleCost::parse(cost.to_string()), cost) << text;
  }
  EXPECT_EQ(SampleCost::parse("flops(hidden=8192)").to_string(), "flops(linear=49152,quadratic=1)");
}

TEST(SampleCost, RejectsOtherTextAndListsTheAcceptedForms) {
  for (const char* text :
       {"", "token", "tokens ", "flops(", "flops()", "flops(hidden=)", "flops(hidden=0)", "flops(hidden=-1)",
        "flops(hidden=8192", "flops(hidden=8192))", "flops(hidden=99999999999)", "flops(linear=1)",
        "flops(linear=1,quadratic=)", "flops(linear=1, quadratic=1)", "flops(linear=-1,quadratic=1)",
        "flops(linear=1,quadratic=99999999999999999999)", "flops(hidden=1.5)"}) {
    const auto message = message_of([&] { SampleCost::parse(text); });
    EXPECT_THAT(message, HasSubstr(std::string("'") + text + "'"));
    EXPECT_THAT(message, HasSubstr("must be tokens, flops, flops(hidden=H) or flops(linear=A,quadratic=B)"));
  }
}

TEST(SampleCost, RejectsNegativeWork) {
  EXPECT_THAT(message_of([] {
                SampleCost::parse("weights").of({.weights = {0, -3}});
              }),
              HasSubstr("its work is -3; work must be 0 or more"));
  EXPECT_THAT(message_of([] { SampleCost::parse("tokens").of({.tokens = -1}); }), HasSubstr("-1"));
  const SampleCost negative{.kind = SampleCost::Kind::flops, .linear = -1};
  EXPECT_THAT(message_of([&] { negative.of({.tokens = 5}); }), HasSubstr("-5"));
}

TEST(SampleCost, RejectsWorkOf62BitsOrMore) {
  const std::int64_t limit = std::int64_t{1} << 62;
  const auto tokens = SampleCost::parse("tokens");
  EXPECT_EQ(tokens.of({.tokens = limit - 1}).first, limit - 1);
  EXPECT_THAT(message_of([&] { tokens.of({.tokens = limit}); }), HasSubstr("does not fit in 62 bits"));
  const auto flops = SampleCost::parse("flops(linear=4,quadratic=4)");
  for (const SampleSize size :
       {SampleSize{.tokens = limit}, {.squares = limit}, {.tokens = limit / 8, .squares = limit / 8}}) {
    EXPECT_THAT(message_of([&] { flops.of(size); }), HasSubstr("does not fit in 62 bits"));
  }
}

}  // namespace
}  // namespace levada
