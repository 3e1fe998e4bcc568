#include "levada/base/error.h"

#include <gtest/gtest.h>

namespace levada {
namespace {

template <typename T>
void expect_thrown_again(ErrorKind kind, std::string_view name) {
  try {
    throw_error(kind, "what happened");
  } catch (const T& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_EQ(error.name(), name);
    EXPECT_STREQ(error.what(), "what happened");
  }
}

TEST(ThrowError, ThrowsTheClassOfTheKind) {
  expect_thrown_again<InvalidArgument>(ErrorKind::invalid_argument, "InvalidArgument");
  expect_thrown_again<Timeout>(ErrorKind::timeout, "Timeout");
  expect_thrown_again<PeerLost>(ErrorKind::peer_lost, "PeerLost");
  expect_thrown_again<CorruptMessage>(ErrorKind::corrupt_message, "CorruptMessage");
  expect_thrown_again<Unsupported>(ErrorKind::unsupported, "Unsupported");
  expect_thrown_again<SourceError>(ErrorKind::source, "SourceError");
  expect_thrown_again<EngineError>(ErrorKind::engine, "EngineError");
}

TEST(ThrowError, NamesTheLostRank) {
  try {
    throw_error(ErrorKind::peer_lost, "rank 3 ended", 3);
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank(), 3);
  }
}

TEST(ThrowError, ThrowsAnEngineErrorForAnUnknownKind) {
  EXPECT_THROW(throw_error(static_cast<ErrorKind>(99), "what happened"), EngineError);
  EXPECT_EQ(error_name(static_cast<ErrorKind>(99)), "Error");
}

TEST(Error, CarriesTheFieldsOfItsClass) {
  EXPECT_EQ(PeerLost(3, "rank 3 ended").rank(), 3);
  EXPECT_EQ(CorruptMessage(17, "bad").offset(), 17U);
}

TEST(Error, EscapesTerminalControlSequences) {
  EXPECT_STREQ(SourceError("no field \x1b]0;x\x07 in caf\xe9:\n  line 2").what(),
               "no field \\x1b]0;x\\x07 in caf\\xe9:\n  line 2");
}

}  // namespace
}  // namespace levada
