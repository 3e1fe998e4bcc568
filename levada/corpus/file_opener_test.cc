#include "levada/corpus/file_opener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
  auto raw = raw_index(1, 1, std::vector<std::int32_t>(count, 1), begins);
  std::ranges::reverse(raw.places);  // sequences in another order need a table
  const auto idx = raw.bytes();
  const std::string bin(count, ' ');
  const auto open_two = [&](std::uint64_t available) {
    std::latch both_claimed(2);
    CorpusOptions options;
    options.open = [&](const std::string& path) {
      auto file = std::make_unique<MemoryFile>(path, path.ends_with(".idx") ? idx : bin);
      if (path.ends_with(".bin")) return file;
      file->before_read = [&](std::uint64_t offset) {
        // Neither reads past the middle of its places until the other has claimed memory for its table.
        if (offset > 8 * count && offset < 12 * count) both_claimed.wait();
      };
      return file;
    };
    const auto memory = std::make_shared<MemoryClaims>([&] {
      both_claimed.count_down();
      return MemoryLimits{.total = std::uint64_t{1} << 30, .available = available};
    });
    return FileOpener(options, memory).open({"a.bin", "b.bin"});
  };
  constexpr std::uint64_t part = std::uint64_t{16} << 20;
  EXPECT_EQ(open_two(2 * part + 100).size(), 2);
  EXPECT_THAT(refusal([&] { open_two(2 * part - 100); }),
              HasSubstr(".idx, which are not in storage order, takes about 16.0 MiB of memory, but only 16.0"));
}

}  // namespace
}  // namespace levada
