#include "levada/cli/file_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/fault_testing.h"

namespace levada::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SharedFileList, PreservesNamesThatLookLikeCommentsOrBeginWithBlanks) {
  const SharedFileList list({"a b.txt", "#1.txt", " 2.txt", "/d/#3.txt"});
  EXPECT_THAT(read_file_list(list.path()), ElementsAre("a b.txt", "./#1.txt", "./ 2.txt", "/d/#3.txt"));
  EXPECT_THAT(fault_of([] { SharedFileList({"a.txt "}); }), HasSubstr("'a.txt ' ends with a blank; rename it"));
  EXPECT_THAT(fault_of([] { SharedFileList({"a\nb.txt"}); }), HasSubstr("b.txt' contains a line end; rename it"));
}

}  // namespace
}  // namespace levada::cli
