#include "levada/reduce/bucketing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Bucketing, ClosesABucketWhenTheNextInputDoesNotFit) {
  Bucketing bucketing(100);
  EXPECT_FALSE(bucketing.apply(0, 0, 60).close);
  EXPECT_FALSE(bucketing.apply(0, 0, 40).close) << "it fits exactly";
  EXPECT_EQ(bucketing.apply(0, 0, 1).close, 0);
  EXPECT_FALSE(bucketing.apply(0, 0, 99).close);
}

TEST(Bucketing, LaunchesOversizedInputsWithoutClosingABucket) {
  Bucketing bucketing(100);
  bucketing.apply(0, 0, 60);
  const auto large = bucketing.apply(0, 0, 101);
  EXPECT_TRUE(large.alone);
  EXPECT_FALSE(large.close);
  EXPECT_FALSE(bucketing.apply(0, 0, 40).close);
}

TEST(Bucketing, LaunchesEveryInputSeparatelyWithoutCapacity) {
  for (const std::int64_t capacity : {0, -1}) {
    Bucketing bucketing(capacity);
    EXPECT_TRUE(bucketing.apply(0, 0, 0).alone);
    EXPECT_TRUE(bucketing.apply(0, 0, 10).alone);
    EXPECT_FALSE(bucketing.any_open());
  }
}

TEST(Bucketing, AcceptsInputsOfNoBytes) {
  Bucketing bucketing(8);
  bucketing.apply(0, 0, 8);
  EXPECT_FALSE(bucketing.apply(0, 0, 0).close);
  EXPECT_FALSE(bucketing.apply(0, 0, 0).alone);
}

TEST(Bucketing, TakeBackUndoesApply) {
  Bucketing bucketing(100);
  bucketing.apply(0, 0, 60);
  bucketing.apply(0, 1, 0);
  bucketing.apply(0, 0, 40);
  bucketing.undo(0, 40);
  bucketing.apply(0, 1, 10);
  bucketing.undo(1, 10);
  EXPECT_FALSE(bucketing.apply(0, 0, 40).close);
  EXPECT_EQ(bucketing.apply(0, 0, 50).close, 0);
  bucketing.undo(0, 50);
  EXPECT_THAT(bucketing.flush(), ElementsAre(1)) << "an input of no bytes also counts";
}

TEST(Bucketing, FlushesInTheOrderOfOpening) {
  Bucketing bucketing(100);
  for (const int key : {2, 0, 1, 2, 0}) bucketing.apply(0, key, 40);
  EXPECT_EQ(bucketing.apply(0, 2, 40).close, 2) << "another bucket of key 2 is opened";
  EXPECT_THAT(bucketing.flush(), ElementsAre(0, 1, 2));
  EXPECT_THAT(bucketing.flush(), IsEmpty());
}

TEST(Bucketing, FlushThroughClosesTheBucketAndOlderOnes) {
  Bucketing bucketing(100);
  for (const int key : {2, 0, 1}) bucketing.apply(0, key, 40);
  EXPECT_THAT(bucketing.flush_through(0), ElementsAre(2, 0));
  EXPECT_THAT(bucketing.flush_through(0), IsEmpty());
  EXPECT_THAT(bucketing.flush(), ElementsAre(1));
}

TEST(Bucketing, FlushThroughLeavesOtherGroupsOpen) {
  std::mt19937 random(2);
  for (int run = 0; run < 200; ++run) {
    Bucketing bucketing(100);
    std::vector<int> opened;  // key 3 g + k belongs to group g
    for (int i = 0; i < 12; ++i) {
      const int key = static_cast<int>(random() % 9);
      if (bucketing.open_bytes(key) == 0) opened.push_back(key);
      bucketing.apply(key / 3, key, 1);
    }
    const int waited = opened[random() % opened.size()];
    std::vector<int> closed, left;
    bool is_before = true;
    for (const int key : opened) {
      (is_before && key / 3 == waited / 3 ? closed : left).push_back(key);
      is_before = is_before && key != waited;
    }
    ASSERT_EQ(bucketing.flush_through(waited), closed);
    ASSERT_EQ(bucketing.flush(), left);
  }
}

TEST(Bucketing, NeverFillsABucketBeyondItsCapacity) {
  std::mt19937 random(1);
  for (int run = 0; run < 200; ++run) {
    const auto capacity = static_cast<std::int64_t>(random() % 1000);
    Bucketing bucketing(capacity);
    std::map<int, std::uint64_t> filled;
    for (int i = 0; i < 200; ++i) {
      const int key = static_cast<int>(random() % 3);
      const std::uint64_t bytes = random() % 400;
      const auto placement = bucketing.apply(0, key, bytes);
      ASSERT_EQ(placement.alone, capacity == 0 || bytes > static_cast<std::uint64_t>(capacity));
      if (placement.alone) continue;
      if (placement.close) {
        ASSERT_EQ(*placement.close, key);
        ASSERT_GT(filled[key] + bytes, static_cast<std::uint64_t>(capacity)) << "it would have fit";
        filled[key] = 0;
      }
      filled[key] += bytes;
      ASSERT_LE(filled[key], static_cast<std::uint64_t>(capacity));
    }
  }
}

}  // namespace
}  // namespace levada
