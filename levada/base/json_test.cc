#include "levada/base/json.h"

#include <gmock/gmock.h>

#include "levada/base/error.h"

namespace levada {
namespace {

using testing::HasSubstr;

std::string fault_of(std::string_view text, std::string_view what = "it") {
  try {
    parse_json(text, 3, what);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(ParseJson, KeepsKeysInTheirOrder) {
  EXPECT_EQ(parse_json(R"({"b": [1, {"a": null}], "a": "x"})", 3, "").dump(), R"({"b":[1,{"a":null}],"a":"x"})");
}

TEST(ParseJson, RejectsInvalidJsonNamingThePlace) {
  EXPECT_THAT(fault_of("{\"a\":\n]"), HasSubstr("it: it is not JSON: parse error at line 2, column 1"));
  EXPECT_THAT(fault_of("", ""), testing::StartsWith("it is not JSON"));
  EXPECT_THAT(fault_of("1 2"), HasSubstr("it is not JSON"));
}

TEST(ParseJson, RejectsExcessiveDepthEarly) {
  EXPECT_EQ(fault_of("[[[1]]]"), "nothing was refused");
  EXPECT_EQ(fault_of(std::string(1'000'000, '[')), "it: it nests deeper than 3");
}

TEST(ParseJson, RejectsADuplicateKeyInAnObject) {
  EXPECT_EQ(fault_of(R"({"a": {"a": 1}, "b": {"a": 2}})"), "nothing was refused");
  EXPECT_EQ(fault_of(R"({"a": 1, "b": {}, "a": 1})"), "it: key \"a\" appears twice in one object");
}

TEST(JsonText, IsValidForAnyBytes) {
  EXPECT_EQ(json_text(nlohmann::ordered_json{{"path", "a\xff.jsonl"}, {"n", 1}}),
            "{\"path\":\"a\uFFFD.jsonl\",\"n\":1}");
}

}  // namespace
}  // namespace levada
