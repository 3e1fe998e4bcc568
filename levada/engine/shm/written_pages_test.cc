#include "levada/engine/shm/written_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <iterator>
#include <string>

#include "levada/engine/shm/control.h"
#include "levada/engine/shm/memory.h"

namespace levada::shm {
namespace {

constexpr std::size_t pages = 1200;

/// A file of ones, mapped privately.
class Mapped {
 public:
  Mapped()
      : file_(make_memory_file("test", pages * page_bytes)),
        shared_(file_, pages * page_bytes, Mapping::Access::write),
        view_(file_, pages * page_bytes, Mapping::Access::write_privately) {
    for (std::size_t page = 0; page < pages; ++page) shared_.data()[page * page_bytes] = std::byte{1};
  }
  std::span<std::byte> memory() const { return view_.memory(); }
  std::byte& page(std::size_t number) const { return view_.data()[number * page_bytes]; }

 private:
  UniqueFd file_;
  Mapping shared_, view_;
};

class WrittenPagesBy : public testing::TestWithParam<WrittenPages::Mode> {};

TEST_P(WrittenPagesBy, ShowTheFileAgainOnceDropped) {
  const WrittenPages written(GetParam());
  ASSERT_EQ(written.refusal(), "");
  const Mapped mapped;
  const std::size_t some[] = {0, 3, 4, 511, 512, 1199};
  for (int round = 0; round < 2; ++round) {
    for (const std::size_t number : some) mapped.page(number) = std::byte{2};
    EXPECT_EQ(mapped.page(5), std::byte{1}) << "pages that are only read are not written";
    EXPECT_EQ(written.drop(mapped.memory()), std::size(some));
    for (const std::size_t number : some) EXPECT_EQ(mapped.page(number), std::byte{1});
  }
  EXPECT_EQ(written.drop(mapped.memory()), 0U);
}

TEST_P(WrittenPagesBy, AreFoundIfEverySecondPageIsWritten) {
  const WrittenPages written(GetParam());
  const Mapped mapped;
  for (std::size_t number = 0; number < pages; number += 2) mapped.page(number) = std::byte{2};
  EXPECT_EQ(written.drop(mapped.memory().subspan(2 * page_bytes, 700 * page_bytes)), 350U);
  EXPECT_EQ(mapped.page(0), std::byte{2}) << "pages before the memory are unchanged";
  EXPECT_EQ(mapped.page(702), std::byte{2}) << "pages after the memory are unchanged";
}

INSTANTIATE_TEST_SUITE_P(, WrittenPagesBy, testing::Values(WrittenPages::Mode::scan, WrittenPages::Mode::pagemap),
                         [](const auto& mode) { return mode.param == WrittenPages::Mode::scan ? "Scan" : "Pagemap"; });

TEST(WrittenPages, ReportWhyTheyCannotBeFound) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const WrittenPages written;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(written.refusal().find("/proc/self/pagemap"), std::string::npos);
}

}  // namespace
}  // namespace levada::shm
