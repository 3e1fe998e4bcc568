#include "levada/pipeline/failure.h"

#include <gtest/gtest.h>

namespace levada::pipeline {
namespace {

TEST(Failure, SaysStageItemProcessAndCauseThenTheTraceback) {
  const Failure failure{.stage = "map",
                        .process = "worker 1 (process 4242)",
                        .item = 17,
                        .message = "division by zero",
                        .traceback = "  File \"train.py\", line 3"};
  EXPECT_EQ(describe(failure),
            "stage map, item 17, in worker 1 (process 4242): division by zero\n  File \"train.py\", line 3");
}

TEST(Failure, LeavesOutWhatThereIsNone) {
  EXPECT_EQ(describe({.process = "worker 1 (process 4242)", .message = "no module named x"}),
            "in worker 1 (process 4242): no module named x");
  EXPECT_EQ(describe({.message = "it ended"}), "it ended");
}

TEST(Failure, IsAnErrorOfItsKind) {
  const StageFailed error({.stage = "map", .kind = ErrorKind::unsupported, .message = "no"});
  EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  EXPECT_STREQ(error.what(), "stage map, item 0: no");
  EXPECT_EQ(error.failure().stage, "map");
}

TEST(Failure, CrossesAsBytes) {
  const Failure failure{.stage = "map",
                        .process = "worker 1",
                        .item = 17,
                        .kind = ErrorKind::timeout,
                        .message = "slow",
                        .traceback = "line 3",
                        .exception = {std::byte{1}, std::byte{0}}};
  ByteWriter writer;
  write_failure(writer, failure);
  ByteReader reader(writer.view());
  EXPECT_EQ(read_failure(reader), failure);
  reader.expect_end();
  for (std::size_t bytes = 0; bytes < writer.size(); ++bytes) {
    ByteReader cut(writer.view().first(bytes));
    EXPECT_THROW(read_failure(cut), CorruptMessage) << bytes;
  }
}

TEST(Failure, OfAnErrorThatThereIsNotIsRefused) {
  for (const int kind : {0, 8, 255}) {
    ByteWriter writer;
    write_failure(writer, {.kind = static_cast<ErrorKind>(kind)});
    ByteReader reader(writer.view());
    EXPECT_THROW(read_failure(reader), CorruptMessage) << kind;
  }
}

}  // namespace
}  // namespace levada::pipeline
