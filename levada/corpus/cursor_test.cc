#include "levada/corpus/cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "levada/base/error.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Cursor some_cursor() {
  return {.corpus = "abcd", .order = {{"sequence", "1024"}, {"shuffle", "seed 7"}}, .next = 123456789012};
}

TEST(Cursor, RoundTrips) {
  const auto cursor = Cursor::decode(some_cursor().encode());
  EXPECT_EQ(cursor.corpus, "abcd");
  EXPECT_EQ(cursor.order, some_cursor().order);
  EXPECT_EQ(cursor.next, 123456789012);
  cursor.expect_same(some_cursor());
}

TEST(Cursor, RejectsDamagedBytes) {
  const auto whole = some_cursor().encode();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto changed = whole;
    changed[i] ^= std::byte{4};
    // The version is at byte 4.
    if (i >= 4 && i < 8) {
      EXPECT_THROW(Cursor::decode(changed), Unsupported);
    } else {
      EXPECT_THROW(Cursor::decode(changed), CorruptMessage) << "byte " << i;
    }
    EXPECT_THROW(Cursor::decode(ByteView(whole).first(i)), CorruptMessage);
  }
  auto longer = whole;
  longer.push_back({});
  EXPECT_THROW(Cursor::decode(longer), CorruptMessage);
}

TEST(Cursor, RejectsAnImpossibleSampleNumber) {
  for (const auto next : {std::int64_t{-1}, (std::int64_t{1} << 62) + 1, std::numeric_limits<std::int64_t>::max()}) {
    auto cursor = some_cursor();
    cursor.next = next;
    EXPECT_THROW(static_cast<void>(Cursor::decode(cursor.encode())), CorruptMessage) << next;
  }
}

TEST(Cursor, RejectsAnOrderThatNamesAPropertyTwice) {
  const Cursor cursor{.corpus = "digest", .order = {{"sequence", "8"}, {"sequence", "9"}}, .next = 3};
  EXPECT_THROW(static_cast<void>(Cursor::decode(cursor.encode())), CorruptMessage);
}

TEST(Cursor, NamesEveryDifference) {
  auto other = some_cursor();
  other.corpus = "efgh";
  other.order = {{"sequence", "2048"}, {"weights", "1:2"}};
  try {
    some_cursor().expect_same(other);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("corpus is abcd, there efgh"), HasSubstr("sequence is 1024, there 2048"),
                      HasSubstr("shuffle is seed 7, there none"), HasSubstr("weights is none, there 1:2")));
  }
  other = some_cursor();
  other.order[0].second = "1";
  try {
    some_cursor().expect_same(other);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("corpus is")));
  }
}

}  // namespace
}  // namespace levada
