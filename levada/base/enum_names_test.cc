#include "levada/base/enum_names.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "levada/base/error.h"

namespace levada {
namespace {

enum class Fruit : std::uint8_t { apple, pear, plum };
constexpr EnumName<Fruit> fruits[] = {{"apple", Fruit::apple}, {"pear", Fruit::pear}, {"plum", Fruit::plum}};

TEST(EnumNames, ConvertValuesAndNames) {
  EXPECT_EQ(parse_enum("fruit", "pear", fruits), Fruit::pear);
  EXPECT_EQ(enum_name(Fruit::pear, fruits), "pear");
  EXPECT_EQ(enum_name(static_cast<Fruit>(9), fruits), "unknown");
}

TEST(EnumNames, AreAllListedInTheErrorForAnUnknownName) {
  try {
    parse_enum("--fruit", "rock", fruits);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "--fruit is rock; it must be apple, pear or plum");
  }
}

}  // namespace
}  // namespace levada
