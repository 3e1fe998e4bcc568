#include "levada/engine/process_failure.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace levada {
namespace {

using std::chrono::milliseconds;

TEST(ProcessFailure, SharesADeadlineAmongTheGroupsThatAreLeft) {
  ProcessFailure::note();
  const auto first = ProcessFailure::leave_deadline(std::chrono::seconds(5));
  EXPECT_EQ(ProcessFailure::leave_deadline(std::chrono::seconds(5)).at(), first.at());
  ProcessFailure::forget();
}

TEST(ProcessFailure, HasADeadlineOfItsOwnIfTheProcessHadContinued) {
  ProcessFailure::note();
  ASSERT_LE(ProcessFailure::leave_deadline(milliseconds(200)).remaining(), milliseconds(200));
  std::this_thread::sleep_for(milliseconds(250));
  ProcessFailure::forget();
  ProcessFailure::note();
  EXPECT_FALSE(ProcessFailure::leave_deadline(milliseconds(200)).expired());
  ProcessFailure::forget();
}

TEST(ProcessFailure, FollowsAnExceptionAfterAWhile) {
  ProcessFailure::note_exception("ValueError: loss is NaN", milliseconds(100));
  EXPECT_FALSE(ProcessFailure::exists());
  std::this_thread::sleep_for(milliseconds(150));
  EXPECT_TRUE(ProcessFailure::exists());
  EXPECT_EQ(ProcessFailure::exception(), "ValueError: loss is NaN");
  ProcessFailure::forget();
  EXPECT_FALSE(ProcessFailure::exists());
}

}  // namespace
}  // namespace levada
