#include "levada/base/assert.h"

#include <gtest/gtest.h>

namespace levada {
namespace {

TEST(FailedAssertion, NamesFileLineConditionAndText) {
  EXPECT_DEATH(assertion_failed("levada/feed/feed.cc", 12, "a == b", "both ends count alike"),
               "levada: levada/feed/feed.cc:12: 'a == b' does not hold: both ends count alike");
}

TEST(Assertion, EndsTheProgramIfEnabledAndIsOtherwiseNotEvaluated) {
  [[maybe_unused]] int evaluated = 0;
  LEVADA_ASSERT(++evaluated > 0, "holds");
#ifdef LEVADA_ASSERTIONS
  EXPECT_EQ(evaluated, 1);
  EXPECT_DEATH(LEVADA_ASSERT(evaluated == 7, "seven"), "assert_test.cc:[0-9]+: 'evaluated == 7' does not hold: seven");
#else
  EXPECT_EQ(evaluated, 0);
#endif
}

}  // namespace
}  // namespace levada
