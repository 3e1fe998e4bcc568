#include "levada/exchange/sample_index.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

using testing::ElementsAre;

std::vector<std::string> ids_of(const SampleIndex& index) {
  std::vector<std::string> ids;
  for (std::size_t sample = 0; sample < index.size(); ++sample) ids.emplace_back(index.id(sample));
  return ids;
}

TEST(SampleIndex, NumbersIdsIndependentlyOfTheirOrder) {
  const std::vector<Destination> one{{{0, 1}, {"s-12", "s-3", "s"}}, {{}, {"unheard"}}, {{2}, {"s-3", "t", "s-12"}}};
  const std::vector<Destination> other{{{2}, {"t", "s-12", "s-3"}}, {{}, {"unheard"}}, {{1, 0}, {"s", "s-3", "s-12"}}};
  const SampleIndex index(one), again(other);
  EXPECT_THAT(ids_of(index), ElementsAre("s", "s-12", "s-3", "t"));
  EXPECT_EQ(ids_of(again), ids_of(index));
  EXPECT_THAT(index.requested(), ElementsAre(1, 2, 0, 2, 3, 1));
  EXPECT_EQ(again.fingerprint(), index.fingerprint());
  auto less = one;
  less[0].ids.pop_back();
  EXPECT_NE(SampleIndex(less).fingerprint(), index.fingerprint());
}

TEST(SampleIndex, SortsIdsThatArriveInRuns) {
  auto ids = numbered_ids(200);
  for (std::size_t i = 0; i + 1 < ids.size(); i += 1 + i % 5) std::swap(ids[i], ids[ids.size() - 1 - i / 2]);
  const auto given = ids;
  const SampleIndex index({{{0}, ids}});
  std::ranges::sort(ids);
  EXPECT_EQ(ids_of(index), ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(index.id(index.requested()[i]), given[i]);
  }
}

}  // namespace
}  // namespace levada
