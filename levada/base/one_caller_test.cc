#include "levada/base/one_caller.h"

#include <gmock/gmock.h>

#include "levada/base/refusal_testing.h"

namespace levada {
namespace {

using testing::HasSubstr;

TEST(OneCaller, RejectsASecondThreadDuringACall) {
  OneCaller callers;
  {
    const OneCaller::Call call(callers, "this feed");
    EXPECT_TRUE(callers.is_mine());
    std::thread([&] {
      EXPECT_FALSE(callers.is_mine() || callers.is_free());
      for (const auto nested : {OneCaller::Nested::refused, OneCaller::Nested::allowed}) {
        EXPECT_THAT(refusal([&] { const OneCaller::Call second(callers, "this feed", nested); }),
                    HasSubstr("a call of this feed is under way on another thread; let one thread at a time use it"));
      }
    }).join();
  }
  EXPECT_TRUE(callers.is_free());
  std::thread([&] { const OneCaller::Call call(callers, "this feed"); }).join();
}

TEST(OneCaller, AdmitsItsOwnThreadAgainIfNestedCallsAreAllowed) {
  OneCaller callers;
  const OneCaller::Call call(callers, "this feed");
  EXPECT_THAT(refusal([&] { const OneCaller::Call second(callers, "this feed"); }),
              HasSubstr("interrupted by a signal"));
  { const OneCaller::Call second(callers, "this feed", OneCaller::Nested::allowed); }
  EXPECT_TRUE(callers.is_mine());
}

}  // namespace
}  // namespace levada
