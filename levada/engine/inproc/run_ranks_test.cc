#include <gtest/gtest.h>

#include <memory>

#include "levada/base/error.h"
#include "levada/engine/inproc/inproc.h"

namespace levada {
namespace {

TEST(InprocRunRanks, RethrowsTheExceptionOfARankAndEndsTheOthers) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    if (engine->info().rank == 2) throw SourceError("line 7 is bad");
    engine->wait({}, Deadline::never());
  };
  EXPECT_THROW(inproc::run_ranks(4, body), SourceError);
}

TEST(InprocRunRanks, ThrowsTheErrorOfARankThatAbortedItself) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    if (engine->info().rank != 1) engine->wait({}, Deadline::never());
    engine->abort("a reason of its own");
    throw SourceError("line 7 is bad");
  };
  EXPECT_THROW(inproc::run_ranks(3, body), SourceError);
}

TEST(InprocRunRanks, ThrowsTheAbortIfNoRankHasAnotherError) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    if (engine->info().rank == 1) engine->abort("a reason of its own");
    else engine->wait({}, Deadline::never());
  };
  EXPECT_THROW(inproc::run_ranks(3, body), EngineError);
}

}  // namespace
}  // namespace levada
