#include "levada/cli/small_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "levada/base/error.h"

namespace levada::cli {
namespace {

using ::testing::HasSubstr;

std::string write(const std::string& name, const std::string& text) {
  auto path = ::testing::TempDir() + name + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

void expect_refusal(const std::string& path, const std::string& words) {
  try {
    read_small_file("layout", path);
    FAIL() << "expected: " << words;
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("the layout file " + path + " cannot be used: " + words));
  }
}

TEST(SmallFile, IsReadCompletely) {
  const std::string text("a\n\0b\xff", 5);
  const auto path = write("whole", text);
  EXPECT_EQ(read_small_file("layout", path), text);
  std::filesystem::remove(path);
}

TEST(SmallFile, ErrorsNameTheCause) {
  expect_refusal("/nowhere/layout.json", "No such file");
  expect_refusal(::testing::TempDir(), "it is not a regular file");
  const auto empty = write("empty", "");
  expect_refusal(empty, "it is empty");
  const auto large = write("large", std::string((1 << 20) + 1, 'x'));
  expect_refusal(large, "it is larger than 1 MiB");
  EXPECT_EQ(read_small_file("layout", large, 2).size(), (1u << 20) + 1);
  for (const auto& path : {empty, large}) std::filesystem::remove(path);
}

}  // namespace
}  // namespace levada::cli
