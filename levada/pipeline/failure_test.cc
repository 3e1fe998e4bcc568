#include "levada/pipeline/failure.h"

#include <gtest/gtest.h>

#include "levada/base/fields.h"

namespace levada::pipeline {
namespace {

TEST(Failure, PrintsStageItemProcessCauseAndTraceback) {
  const Failure failure{.stage = "map",
                        .process = "worker 1 (process 4242)",
                        .item = 17,
                        .message = "division by zero",
                        .traceback = "  File \"train.py\", line 3"};
  EXPECT_EQ(describe(failure),
            "stage map, item 17, in worker 1 (process 4242): division by zero\n  File \"train.py\", line 3");
}

TEST(Failure, OmitsMissingParts) {
  EXPECT_EQ(describe({.process = "worker 1 (process 4242)", .message = "no module named x"}),
            "in worker 1 (process 4242): no module named x");
  EXPECT_EQ(describe({.message = "it ended"}), "it ended");
}

TEST(Failure, HasTheKindOfItsError) {
  const StageFailed error({.stage = "map", .kind = ErrorKind::unsupported, .message = "no"});
  EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  EXPECT_STREQ(error.what(), "stage map, item 0: no");
  EXPECT_EQ(error.failure().stage, "map");
}

TEST(Failure, SurvivesEncoding) {
  const Failure failure{.stage = "map",
                        .process = "worker 1",
                        .item = 17,
                        .kind = ErrorKind::timeout,
                        .message = "slow",
                        .traceback = "line 3",
                        .exception = {std::byte{1}, std::byte{0}},
                        .ends_program = true};
  const Bytes bytes = encode(failure);
  EXPECT_EQ(decode<Failure>(bytes), failure);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode<Failure>(ByteView(bytes).first(size)), CorruptMessage) << size;
  }
}

TEST(Failure, RejectsAnUnknownKind) {
  for (const int kind : {0, 8, 255}) {
    const Bytes bytes = encode(Failure{.kind = static_cast<ErrorKind>(kind)});
    EXPECT_THROW(decode<Failure>(bytes), CorruptMessage) << kind;
  }
}

}  // namespace
}  // namespace levada::pipeline
