#include "levada/sources/memory_claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/refusal_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

TEST(MemoryClaims, ComparesEachClaimWithTheMemoryLeftByOthers) {
  MemoryClaims all([] { return MemoryLimits{.total = 100 * mib, .available = 10 * mib}; });
  MemoryClaims::Claim first(all), second(all);
  first.add(6 * mib, "the first");
  EXPECT_THAT(refusal([&] { second.add(5 * mib, "the second", ", or less"); }),
              AllOf(HasSubstr("the second takes about 5.0 MiB"), HasSubstr("only 4.0 MiB of the 100.0 MiB"),
                    HasSubstr("allow it more memory, or less")));
  EXPECT_NO_THROW(second.add(4 * mib, "the second"));
}

TEST(MemoryClaims, DoesNotCountSettledRejectedOrDestroyedClaims) {
  MemoryClaims all([] { return MemoryLimits{.total = 100 * mib, .available = 10 * mib}; });
  MemoryClaims::Claim first(all);
  first.add(6 * mib, "the first");
  EXPECT_THROW(first.add(6 * mib, "the first"), InvalidArgument);
  first.settle(4 * mib);
  EXPECT_NO_THROW(MemoryClaims::Claim(all).add(8 * mib, "another"));
  EXPECT_NO_THROW(MemoryClaims::Claim(all).add(8 * mib, "another"));
  first.settle(100 * mib);
  EXPECT_NO_THROW(MemoryClaims::Claim(all).add(10 * mib, "another"));
}

TEST(MemoryClaims, ReadsTheLimitsRarelyForSmallClaims) {
  int reads = 0;
  MemoryClaims all([&] {
    ++reads;
    return MemoryLimits{.total = 100 * mib, .available = 2 * mib};
  });
  std::uint64_t claimed = 0;
  MemoryClaims::Claim claim(all);
  EXPECT_THROW(
      {
        for (;; claimed += mib / 64) claim.add(mib / 64, "a small file");
      },
      InvalidArgument);
  EXPECT_LE(claimed, 3 * mib);
  EXPECT_LE(reads, 4);
}

}  // namespace
}  // namespace levada
