#include <gtest/gtest.h>

#include "levada/pipeline/protocol_world_testing.h"

namespace levada::pipeline::protocol {
namespace {

using testing::Explorer;
using testing::Request;
using testing::Setup;
using testing::Stages;

std::size_t explore(const Setup& setup) {
  Explorer explorer(setup);
  const std::size_t states = explorer.run();
  EXPECT_GT(states, 10u);
  return states;
}

constexpr auto all_stages = {Stages::one_to_one, Stages::some_dropped, Stages::some_doubled};

TEST(PipelineProtocol, YieldsEachItemOnceAndInOrderInEveryInterleaving) {
  for (const Stages stages : all_stages) {
    for (int workers = 1; workers <= 3; ++workers) {
      for (std::int64_t items = 0; items <= 4; ++items) {
        for (std::size_t window = 1; window <= 2; ++window) {
          SCOPED_TRACE(::testing::Message() << workers << " workers, " << items << " items, window " << window
                                            << ", stages " << static_cast<int>(stages));
          Explorer explorer({.workers = workers, .items = items, .window = window, .group = 2, .stages = stages});
          explorer.run();
          EXPECT_TRUE(explorer.reached_end());
        }
      }
    }
  }
}

TEST(PipelineProtocol, KeepsTheOrderIfWorkersHoldInputs) {
  for (std::int64_t max_held = 1; max_held <= 3; ++max_held) {
    for (int workers = 1; workers <= 2; ++workers) {
      for (std::int64_t items = 0; items <= 5; ++items) {
        for (int group = 1; group <= 3; ++group) {
          SCOPED_TRACE(::testing::Message() << workers << " workers that hold " << max_held << " inputs, " << items
                                            << " items, dispatched " << group << " at once");
          explore({.workers = workers, .items = items, .group = group, .max_held = max_held});
        }
      }
    }
    for (std::int64_t item = 0; item < 4; ++item) {
      explore({.items = 4, .max_held = max_held, .dispatcher_fails = item});
      explore({.items = 4, .max_held = max_held, .worker_fails = item});
    }
    explore({.items = 3, .max_held = max_held, .requests = {Request::reset}});
    explore({.items = 8, .max_held = max_held, .mark = 3, .num_inputs = {1, 2}});
  }
}

TEST(PipelineProtocol, YieldsNoItemsOfAnEarlierEpochAfterAReset) {
  for (const Stages stages : all_stages) {
    explore({.workers = 1, .items = 2, .window = 2, .stages = stages, .requests = {Request::reset, Request::reset}});
    explore({.items = 2, .stages = stages, .requests = {Request::reset}});
  }
  explore({.items = 1, .requests = {Request::reset, Request::reset}});
}

TEST(PipelineProtocol, PausesAndResumesAtAnyTime) {
  for (const Stages stages : all_stages) {
    explore({.items = 2, .stages = stages, .requests = {Request::pause, Request::resume}});
    explore({.items = 1, .stages = stages, .requests = {Request::pause, Request::reset}});
  }
}

TEST(PipelineProtocol, ShutsDownAtAnyTime) {
  for (const Stages stages : all_stages) {
    explore({.items = 2, .stages = stages, .requests = {Request::shutdown}});
    explore({.items = 1, .stages = stages, .requests = {Request::pause, Request::shutdown}});
    explore({.items = 1, .stages = stages, .requests = {Request::reset, Request::shutdown}});
  }
}

TEST(PipelineProtocol, ReportsAFailureInPlaceOfItsItem) {
  for (const Stages stages : all_stages) {
    for (std::int64_t item = 0; item < 3; ++item) {
      explore({.items = 4, .stages = stages, .dispatcher_fails = item});
      explore({.items = 4, .stages = stages, .worker_fails = item});
    }
  }
}

TEST(PipelineProtocol, ResumesWorkersAtDifferentPositions) {
  for (const Stages stages : all_stages) {
    for (int group = 1; group <= 3; ++group) {
      for (std::int64_t mark = 1; mark <= 5; ++mark) {
        explore({.items = 12, .group = group, .stages = stages, .mark = mark, .num_inputs = {0, mark - 1}});
        explore({.items = 12, .group = group, .stages = stages, .mark = mark, .num_inputs = {mark - 1, 0}});
        explore({.workers = 3, .items = 12, .stages = stages, .mark = mark, .num_inputs = {0, mark - 1, mark / 2}});
      }
    }
  }
}

TEST(PipelineProtocol, AWorkerThatEndsEarlyBlocksNoProcess) {
  for (const Stages stages : all_stages) {
    if (stages == Stages::some_dropped) continue;  // worker 0 would yield nothing and never leave
    explore({.items = 4, .stages = stages, .leaves_after = 1});
    explore({.items = 2, .stages = stages, .requests = {Request::reset}, .leaves_after = 1});
  }
}

}  // namespace
}  // namespace levada::pipeline::protocol
