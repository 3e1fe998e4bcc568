#include "levada/corpus/file_opener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <numeric>
#include <thread>

#include "levada/base/refusal_testing.h"
#include "levada/corpus/corpus_testing.h"
#include "levada/sources/megatron_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

TEST(FileOpener, SumsTheTablesOfConcurrentlyOpenedFiles) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two cores";  // skipped without: a second core
  constexpr std::int32_t count = 500'000;
  std::vector<std::int64_t> begins(count + 1);
  std::iota(begins.begin(), begins.end(), 0);
  const auto idx = raw_index(1, 1, std::vector<std::int32_t>(count, 1), begins).bytes();
  const std::string bin(count, ' ');
  const auto open_two = [&](std::uint64_t available) {
    std::latch both_claimed(2);
    CorpusOptions options;
    options.packing = Packing::best_fit;
    options.open = [&](const std::string& path) {
      auto file = std::make_unique<MemoryFile>(path, path.ends_with(".idx") ? idx : bin);
      if (path.ends_with(".bin")) return file;
      file->before_read = [&](std::uint64_t offset) {
        if (offset > 0) both_claimed.wait();  // neither reads past the header until the other has read its own
      };
      return file;
    };
    const auto memory = std::make_shared<MemoryClaims>([&] {
      both_claimed.count_down();
      return MemoryLimits{.total = std::uint64_t{1} << 30, .available = available};
    });
    return FileOpener(options, memory).open({"a.bin", "b.bin"});
  };
  constexpr std::uint64_t table = 8 * count;
  EXPECT_EQ(open_two(2 * table + 100).size(), 2);
  EXPECT_THAT(refusal([&] { open_two(2 * table - 100); }),
              HasSubstr(".bin takes about 3.8 MiB of memory, but only 3.8"));
}

}  // namespace
}  // namespace levada
