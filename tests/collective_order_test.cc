// Ranks of one group that call different operations, between threads and between processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"
#include "levada/base/refusal_testing.h"
#include "levada/engine/collect.h"
#include "levada/engine/collective_order.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/exchange/exchange.h"
#include "levada/feed/feed.h"
#include "levada/feed/source_testing.h"

namespace levada {
namespace {

using Handle = std::shared_ptr<Engine>;
using Call = std::function<void(const Handle&)>;

constexpr Duration timeout = std::chrono::seconds(40);

struct Operation {
  std::string name;
  Call call;
};

const Operation feed{"starting the feed", [](const Handle& engine) {
                       const auto size = std::to_string(engine->info().size);
                       Feed(engine, Mesh::parse("dp=" + size), layouts::gpt(),
                            std::make_shared<testing::Numbered>(testing::NumberedOptions{}), {.timeout = timeout});
                     }};
const Operation exchange{"an exchange", [](const Handle& engine) {
                           SampleStore store;
                           Exchange(engine).all_gather(store, {.timeout = timeout});
                         }};

const Operation gather{"gathering results", [](const Handle& engine) {
                         CollectiveOrder order(*engine, nullptr);
                         const auto poll = order.as_poll();
                         agree(*engine, {}, Deadline::after(timeout), "gathering results", &poll);
                       }};
/// Throws unless the rank's call fails soon with an error that names both operations.
void expect_named(const Handle& engine, int odd, const Operation& one, const Operation& other) {
  const auto begin = Clock::now();
  const std::string text = refusal<Error>([&] { (engine->info().rank == odd ? other : one).call(engine); });
  if (Clock::now() - begin > timeout / 4) throw EngineError("it took too long: " + text);
  for (const std::string& name : {one.name, other.name}) {
    if (text.find(" in " + name) == std::string::npos) throw EngineError("it does not name " + name + ": " + text);
  }
}

class DifferentOperations : public ::testing::TestWithParam<std::pair<Operation, Operation>> {};

TEST_P(DifferentOperations, EndTheGroupOnEveryThreadWithinSeconds) {
  const auto& [one, other] = GetParam();
  for (const int odd : {0, 1, 2}) {
    std::vector<std::string> faults(3);
    inproc::run_ranks(3, [&](const Handle& engine) {
      try {
        expect_named(engine, odd, one, other);
      } catch (const Error& error) {
        faults[static_cast<std::size_t>(engine->info().rank)] = error.what();
      }
    });
    EXPECT_THAT(faults, ::testing::Each("")) << one.name << ", and rank " << odd << " in " << other.name;
  }
}

TEST_P(DifferentOperations, EndTheGroupInEveryProcessWithinSeconds) {
  const auto& [one, other] = GetParam();
  EXPECT_EQ(shm::test::run_forked(2, [&](const Handle& engine) { expect_named(engine, 1, one, other); }), "");
}

INSTANTIATE_TEST_SUITE_P(AllPairs, DifferentOperations,
                         ::testing::Values(std::pair(feed, exchange), std::pair(exchange, feed),
                                           std::pair(feed, gather)));

}  // namespace
}  // namespace levada
