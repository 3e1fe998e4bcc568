#include "bench/fan_out.h"

#include <gtest/gtest.h>

#include "levada/base/error.h"
#include "levada/engine/inproc/inproc.h"

namespace levada::bench {
namespace {

double copies(const FanOut& operation, BatchSource source, Access access) {
  double copies_per_byte = -1;
  inproc::run_ranks(4, [&](const std::shared_ptr<Engine>& engine) {
    const FanOutOptions options{
        .bytes = std::uint64_t{4} << 20, .source = source, .access = access, .rounds = 5, .warm_up = 2};
    const auto result = measure(engine, operation, options);
    if (engine->info().rank == 0) copies_per_byte = result.copies_per_byte;
  });
  return copies_per_byte;
}

// Small messages that are not payload are copied, too, so the ratios are not whole numbers.
constexpr double little = 0.001;

TEST(FanOut, NothingIsCopiedOnTheWayFromEngineMemory) {
  EXPECT_NEAR(copies(scatter, BatchSource::arena, Access::read_only), 0, little);
  EXPECT_NEAR(copies(broadcast, BatchSource::arena, Access::read_only), 0, little);
}

TEST(FanOut, EachDistinctByteIsCopiedOnceOnTheWayFromOrdinaryMemory) {
  EXPECT_NEAR(copies(scatter, BatchSource::host, Access::read_only), 1, little);
  EXPECT_NEAR(copies(broadcast, BatchSource::host, Access::read_only), 1, little);
}

TEST(FanOut, AccessCopyCopiesOnceMoreForEachRank) {
  EXPECT_NEAR(copies(scatter, BatchSource::arena, Access::copy), 1, little);
  EXPECT_NEAR(copies(broadcast, BatchSource::arena, Access::copy), 4, little);
}

TEST(FanOut, RefusesWhatCannotBeDivided) {
  EXPECT_THROW(check({.bytes = 12, .fields = 4}), InvalidArgument);
  EXPECT_THROW(check({.rounds = 0}), InvalidArgument);
}

TEST(FanOut, RefusesToWriteToReadOnlyViews) {
  EXPECT_THROW(check({.write_percent = 1}), InvalidArgument);
  EXPECT_THROW(check({.access = Access::copy, .write_percent = 101}), InvalidArgument);
  EXPECT_NO_THROW(check({.access = Access::copy, .write_percent = 100}));
}

}  // namespace
}  // namespace levada::bench
