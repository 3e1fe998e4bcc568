#include "levada/exchange/exchange_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "levada/exchange/planner.h"

namespace levada {
namespace {

SampleBatch plain_samples(const std::vector<std::string>& ids, const std::vector<std::int64_t>& lengths) {
  SampleBatch batch(ids);
  batch.set({"tokens", dtypes::int64, {}}, Seqlens::one_each(lengths));
  return batch;
}

TEST(ExchangePlan, Prints) {
  SampleDirectory directory;
  directory.add(0, plain_samples({"a", "b", "c"}, {300, 500, 100}));
  directory.add(1, plain_samples({"d"}, {700}));
  const auto plan = plan_exchange(directory, {{{{2, 3}, {"a", "b", "d"}}}, {"tokens"}});
  EXPECT_EQ("\n" + plan.to_table(), R"(
from  to   samples  keys    part     bytes
------------------------------------------
   0  2,3        2  tokens  whole  6.2 KiB
   1  2,3        1  tokens  whole  5.5 KiB

from  to    bytes
-----------------
   0   2  6.2 KiB
   0   3  6.2 KiB
   1   2  5.5 KiB
   1   3  5.5 KiB

moved        11.7 KiB  in 2 multicasts
minimum      11.7 KiB  of any plan: each missing item once
delivered    23.4 KiB  among 4 ranks
busiest       6.2 KiB  sent by rank 0
)");
  const auto json = nlohmann::json::parse(plan.to_json(true));
  EXPECT_EQ(json["multicasts"][0]["ids"], (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(json["busiest"]["rank"], 0);
}

TEST(ExchangePlan, EqualsAPlanWithTheSameMoves) {
  const auto plan = [](const std::vector<std::string>& ids, std::int64_t length, const std::string& wanted) {
    SampleDirectory directory;
    std::vector<std::int64_t> lengths(ids.size(), length);
    directory.add(0, plain_samples(ids, lengths));
    return plan_exchange(directory, {{{{1}, {wanted}}}, {"tokens"}});
  };
  EXPECT_EQ(plan({"a", "b"}, 3, "a"), plan({"c", "a"}, 3, "a"));
  EXPECT_FALSE(plan({"a", "b"}, 3, "a") == plan({"a", "b"}, 4, "a"));
  EXPECT_FALSE(plan({"a", "b"}, 3, "a") == plan({"a", "b"}, 3, "b"));
}

}  // namespace
}  // namespace levada
