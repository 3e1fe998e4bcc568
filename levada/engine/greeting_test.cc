#include "levada/engine/greeting.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "levada/base/error.h"

namespace levada {
namespace {

std::string refusal(const std::vector<Greeting>& greetings) {
  try {
    check_greetings(greetings);
  } catch (const EngineError& error) {
    return error.what();
  }
  return {};
}

Greeting of_host(std::string_view host, const Release& release) {
  Greeting bytes = group_greeting(host);
  return greeting(rest_of(bytes), release);
}

TEST(Greeting, HasTheLayoutThatNeverChanges) {
  const Greeting bytes = of_host("host1", {0x01020304, "0.2.0"});
  std::string expected = std::string("levada\r\n") + "\x04\x03\x02\x01" + std::string(4, '\0') + "0.2.0";
  expected.resize(32);
  expected += "host1";
  expected.resize(64);
  EXPECT_EQ(as_text(bytes), expected);
}

TEST(Greeting, ReleaseIsReadOnlyFromAValidGreeting) {
  EXPECT_EQ(release_of(group_greeting("a")), own_release());
  const Greeting good = group_greeting("a");
  EXPECT_EQ(release_of(ByteView(good).first(63)), std::nullopt);
  EXPECT_EQ(release_of({}), std::nullopt);
  EXPECT_EQ(release_of(Bytes(64)), std::nullopt);
}

TEST(Greeting, AcceptsTheSameRelease) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({group_greeting("a"), group_greeting("b")}), "");
}

TEST(Greeting, RejectsAnotherReleaseNamingBothHosts) {
  EXPECT_EQ(refusal({of_host("host0", {3, "0.1.0"}), of_host("host0", {3, "0.1.0"}), of_host("host1", {4, "0.2.0"})}),
            "rank 2 on host host1 runs Levada 0.2.0, but rank 0 on host host0 runs 0.1.0; install the same release for "
            "all ranks of the job");
  EXPECT_EQ(refusal({of_host("", {3, "0.1.0"}), of_host("", {4, "0.1.0"})}),
            "rank 1 runs Levada 0.1.0 (protocol 4), but rank 0 runs 0.1.0 (protocol 3); install the same release for "
            "all ranks of the job");
}

TEST(Greeting, RejectsAnythingElse) {
  EXPECT_NE(refusal({group_greeting("a"), Greeting{}}).find("rank 1 joins without a greeting"), std::string::npos);
  EXPECT_NE(refusal({Greeting{}, group_greeting("a")}).find("rank 0 joins without a greeting"), std::string::npos);
  EXPECT_NE(refusal({Greeting{}, Greeting{}}).find("without a greeting"), std::string::npos);
}

TEST(Greeting, EscapesAHostNameThatIsNotPrintable) {
  const auto text = refusal({of_host("host0", {3, "0.1.0"}), of_host("\x1b[2J", {3, "0.\x1b"})});
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
}

}  // namespace
}  // namespace levada
