#include "levada/base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "levada/base/error.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

void expect_corrupt(std::size_t offset, const std::string& what, const std::function<void()>& action) {
  try {
    action();
    FAIL() << "no error about " << what;
  } catch (const CorruptMessage& error) {
    EXPECT_EQ(error.offset(), offset);
    EXPECT_THAT(error.what(), HasSubstr(what));
  }
}

TEST(AlignUp, ReturnsTheNextMultiple) {
  EXPECT_EQ(align_up(0, 64), 0U);
  EXPECT_EQ(align_up(1, 64), 64U);
  EXPECT_EQ(align_up(64, 64), 64U);
  EXPECT_EQ(align_up(65, 64), 128U);
}

TEST(CheckedArithmetic, ReturnsNothingOnOverflow) {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(checked_add(2, 3), 5U);
  EXPECT_EQ(checked_add(most, 0), most);
  EXPECT_EQ(checked_add(most, 1), std::nullopt);
  EXPECT_EQ(checked_mul(most, 1), most);
  EXPECT_EQ(checked_mul(most / 2, 3), std::nullopt);
  EXPECT_EQ(checked_mul(most, 0), 0U);
}

TEST(FormatBytes, PicksTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(13107200), "12.5 MiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "16384.0 PiB");
}

TEST(ByteReader, ReadsWrittenValuesBack) {
  ByteWriter out;
  out.put(std::uint8_t{7});
  out.put(std::int64_t{-2});
  out.put(1.5);
  out.put_sized("text");
  out.put_sized(ByteView());
  EXPECT_EQ(out.size(), 1U + 8 + 8 + 4 + 4 + 4);

  ByteReader in(out.view());
  EXPECT_EQ(in.get<std::uint8_t>(), 7);
  EXPECT_EQ(in.get<std::int64_t>(), -2);
  EXPECT_EQ(in.get<double>(), 1.5);
  EXPECT_EQ(in.get_string(), "text");
  EXPECT_EQ(in.get_sized().size(), 0U);
  EXPECT_EQ(in.remaining(), 0U);
  EXPECT_NO_THROW(in.expect_end());
}

TEST(ByteWriter, WritesTheLowByteFirst) {
  ByteWriter out;
  out.put(std::uint32_t{0x01020304});
  const Bytes expected = {std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}};
  EXPECT_EQ(std::move(out).take(), expected);
}

TEST(ByteReader, RejectsReadsBeyondItsBytes) {
  const Bytes bytes(7);
  expect_corrupt(100, "8 bytes expected, 7 left", [&] { ByteReader(bytes, 100).get<std::uint64_t>(); });
  expect_corrupt(0, "4 bytes expected, 0 left", [] { ByteReader({}).get_sized(); });
}

TEST(ByteReader, RejectsALengthBeyondItsBytes) {
  ByteWriter out;
  out.put(std::numeric_limits<std::uint32_t>::max());
  out.put(std::uint16_t{0});
  expect_corrupt(4, "4294967295 bytes expected, 2 left", [&] { ByteReader(out.view()).get_sized(); });
}

TEST(ByteReader, RejectsACountBeyondItsBytes) {
  ByteWriter out;
  out.put(std::uint32_t{3});
  out.put(std::uint64_t{0});
  EXPECT_EQ(ByteReader(out.view()).get_count(2), 3U);
  expect_corrupt(4, "a count of 3 exceeds the remaining bytes", [&] { ByteReader(out.view()).get_count(3); });
}

TEST(ByteReader, RejectsAnUnknownEnumCode) {
  enum class Fruit : std::uint8_t { apple = 1, pear = 2 };
  const auto read = [](std::uint8_t code) {
    ByteWriter out;
    out.put(code);
    return ByteReader(out.view()).get_enum(Fruit::apple, Fruit::pear, "fruit");
  };
  EXPECT_EQ(read(1), Fruit::apple);
  EXPECT_EQ(read(2), Fruit::pear);
  expect_corrupt(1, "unknown fruit 0", [&] { read(0); });
  expect_corrupt(1, "unknown fruit 3", [&] { read(3); });
}

TEST(ByteReader, RejectsANumberBelowTheMinimum) {
  ByteWriter out;
  out.put(std::int32_t{-2});
  EXPECT_EQ(ByteReader(out.view()).get_at_least<std::int32_t>(-2, "stage"), -2);
  expect_corrupt(4, "stage -2 is below -1", [&] { ByteReader(out.view()).get_at_least<std::int32_t>(-1, "stage"); });
}

TEST(ByteReader, CopiesBytesOut) {
  ByteWriter out;
  out.put_sized("abc");
  EXPECT_EQ(as_text(ByteReader(out.view()).get_bytes()), "abc");
  expect_corrupt(4, "3 bytes expected, 2 left", [&] { ByteReader(out.view().first(6)).get_bytes(); });
}

TEST(ByteReader, RejectsTrailingBytes) {
  const Bytes bytes(5);
  ByteReader in(bytes);
  in.get<std::uint16_t>();
  expect_corrupt(2, "3 bytes too many", [&] { in.expect_end(); });
}

}  // namespace
}  // namespace levada
