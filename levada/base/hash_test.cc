#include "levada/base/hash.h"

#include <gtest/gtest.h>

namespace levada {
namespace {

std::string digest_of(std::string_view text) {
  Digest digest;
  digest.update(text);
  return digest.hex();
}

// The values that `xxhsum -H3` and `xxhsum -H2` print.
TEST(Hash64, IsXxh3) {
  EXPECT_EQ(hash64({}), 0x2d06800538d394c2U);
  EXPECT_EQ(hash64(as_bytes("abc")), 0x78af5f94892f3950U);
  EXPECT_EQ(hash64(as_bytes("hello world")), 0xd447b1ea40e6988bU);
}

TEST(Hash64, DependsOnItsSeed) {
  EXPECT_NE(hash64(as_bytes("abc"), 1), hash64(as_bytes("abc")));
}

TEST(Digest, IsCanonicalXxh3Of128Bits) {
  EXPECT_EQ(digest_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_of("abc"), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(digest_of("hello world"), "df8d09e93f874900a99b8775cc15b6c7");
  EXPECT_EQ(digest_of(std::string(1000, 'a')), "b01da365eddaa29cb3e7af627147db7c");
}

TEST(Digest, DoesNotDependOnHowTheBytesAreSplit) {
  const std::string text(5000, 'x');
  for (const std::size_t cut : {std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{257}, text.size()}) {
    Digest digest;
    digest.update(std::string_view(text).substr(0, cut));
    digest.update(std::string_view(text).substr(cut));
    EXPECT_EQ(digest.hex(), digest_of(text)) << cut;
  }
}

TEST(Digest, ContinuesAfterBeingRead) {
  Digest digest;
  digest.update("a");
  EXPECT_EQ(digest.hex(), digest_of("a"));
  digest.update("bc");
  EXPECT_EQ(digest.hex(), digest_of("abc"));
  Digest moved = std::move(digest);
  EXPECT_EQ(moved.hex(), digest_of("abc"));
}

}  // namespace
}  // namespace levada
