#include "levada/base/secret.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "levada/base/blake2s.h"
#include "levada/base/error.h"

namespace levada {
namespace {

Bytes ascending(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST(Blake2s, MatchesItsSpecification) {
  EXPECT_EQ(to_hex(blake2s(as_bytes("abc"))), "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
  EXPECT_EQ(to_hex(blake2s({})), "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9");
}

TEST(Blake2s, MatchesThePublishedKeyedVectors) {
  const Bytes key = ascending(32);
  const std::pair<std::size_t, const char*> vectors[] = {
      {0, "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49"},
      {1, "40d15fee7c328830166ac3f918650f807e7e01e177258cdc0a39b11f598066f1"},
      {63, "c65382513f07460da39833cb666c5ed82e61b9e998f4b0c4287cee56c3cc9bcd"},
      {64, "8975b0577fd35566d750b362b0897a26c399136df07bababbde6203ff2954ed4"},
      {65, "21fe0ceb0052be7fb0f004187cacd7de67fa6eb0938d927677f2398c132317a8"},
      {255, "3fb735061abc519dfe979e54c1ee5bfad0a9d858b3315bad34bde999efd724dd"},
  };
  for (const auto& [bytes, hash] : vectors) EXPECT_EQ(to_hex(blake2s(ascending(bytes), key)), hash) << bytes;
}

TEST(Blake2s, RejectsAKeyThatIsTooLong) {
  EXPECT_THROW(blake2s({}, ascending(33)), InvalidArgument);
}

TEST(Secret, ProvesOnlyItsOwnMessage) {
  const Secret secret = random_secret();
  const Bytes message = ascending(100);
  Proof proof = prove(secret, message);
  EXPECT_TRUE(is_proven(secret, message, proof));
  EXPECT_FALSE(is_proven(secret, ascending(99), proof));
  EXPECT_FALSE(is_proven(random_secret(), message, proof));
  EXPECT_FALSE(is_proven(secret, message, ByteView(proof).first(15)));
  EXPECT_FALSE(is_proven(secret, message, {}));
  for (std::byte& byte : proof) {
    byte ^= std::byte{1};
    EXPECT_FALSE(is_proven(secret, message, proof));
    byte ^= std::byte{1};
  }
}

TEST(Secret, DiffersForEachPurposeAndCall) {
  const Secret secret = random_secret();
  EXPECT_NE(secret, random_secret());
  EXPECT_NE(random_challenge(), random_challenge());
  EXPECT_NE(derive_secret(secret, "one"), derive_secret(secret, "other"));
  EXPECT_EQ(derive_secret(secret, "one"), derive_secret(secret, "one"));
}

}  // namespace
}  // namespace levada
