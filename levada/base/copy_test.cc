#include "levada/base/copy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

namespace levada {
namespace {

std::vector<std::byte> counting(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST(CopyPayload, CopiesAndCounts) {
  const auto from = counting(100);
  std::vector<std::byte> to(100);
  const auto before = copied_bytes();
  copy_payload(to.data(), from.data(), 100);
  EXPECT_EQ(to, from);
  EXPECT_EQ(copied_bytes() - before, 100U);
}

TEST(CopyPayload, AcceptsAnEmptyNullSource) {
  const auto before = copied_bytes();
  copy_payload(nullptr, nullptr, 0);
  copy_payload_strided(nullptr, nullptr, 0, 5, 1);
  EXPECT_EQ(copied_bytes(), before);
}

TEST(CopyPayloadPastCaches, CopiesAnyAlignmentToAnyAlignment) {
  const auto from = counting(10'000);
  for (const std::size_t bytes : {0U, 1U, 63U, 4095U, 4096U, 4097U, 9000U}) {
    for (const std::size_t at : {0U, 1U, 17U, 64U, 100U}) {
      std::vector<std::byte> to(10'200, std::byte{0xee});
      const auto before = copied_bytes();
      copy_payload(to.data() + at, from.data() + at / 2, bytes, CopyMode::non_temporal);
      EXPECT_EQ(copied_bytes() - before, bytes);
      EXPECT_EQ(std::memcmp(to.data() + at, from.data() + at / 2, bytes), 0) << bytes << " " << at;
      EXPECT_EQ(to[at + bytes], std::byte{0xee});
      EXPECT_TRUE(at == 0 || to[at - 1] == std::byte{0xee});
    }
  }
}

TEST(CopyMode, BypassesTheCachesForLargeCopies) {
  EXPECT_EQ(copy_mode_for(0), CopyMode::cached);
  EXPECT_EQ(copy_mode_for(cached_write_bytes), CopyMode::cached);
  EXPECT_EQ(copy_mode_for(cached_write_bytes + 1), CopyMode::non_temporal);
  EXPECT_EQ(copy_mode_for(std::uint64_t{1} << 40), CopyMode::non_temporal);
}

TEST(CopyPayload, CountsCopiesOfEveryThread) {
  const auto before = copied_bytes();
  std::vector<std::jthread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      std::array<std::byte, 8> from{};
      std::array<std::byte, 8> to{};
      for (int j = 0; j < 1000; ++j) copy_payload(to.data(), from.data(), from.size());
    });
  }
  threads.clear();
  EXPECT_EQ(copied_bytes() - before, 4U * 1000 * 8);
}

TEST(CopyPayloadStrided, GathersRunsOfAnySize) {
  const auto from = counting(200);
  for (const std::size_t run : {1U, 2U, 3U, 4U, 8U, 12U, 16U, 24U}) {
    for (const std::ptrdiff_t stride : {0, 1, 25}) {
      std::vector<std::byte> to(run * 7);
      const auto before = copied_bytes();
      copy_payload_strided(to.data(), from.data(), run, 7, stride);
      EXPECT_EQ(copied_bytes() - before, to.size());
      for (std::size_t i = 0; i < to.size(); ++i) {
        ASSERT_EQ(to[i], from[i / run * static_cast<std::size_t>(stride) + i % run]) << run << " " << stride;
      }
    }
  }
}

TEST(CopyPayloadStrided, GathersLongRunsBypassingTheCaches) {
  const auto from = counting(20'000);
  std::vector<std::byte> to(3 * 5000 + 8, std::byte{0xee});
  const auto before = copied_bytes();
  copy_payload_strided(to.data() + 4, from.data() + 1, 5000, 3, 7001, CopyMode::non_temporal);
  EXPECT_EQ(copied_bytes() - before, 3U * 5000);
  for (std::size_t run = 0; run < 3; ++run) {
    EXPECT_EQ(std::memcmp(to.data() + 4 + run * 5000, from.data() + 1 + run * 7001, 5000), 0) << run;
  }
  EXPECT_EQ(to[3], std::byte{0xee});
  EXPECT_EQ(to[4 + 3 * 5000], std::byte{0xee});
}

TEST(CopyPayloadStrided, WalksBackwards) {
  const auto from = counting(8);
  std::vector<std::byte> to(8);
  copy_payload_strided(to.data(), from.data() + 6, 2, 4, -2);
  const std::vector<std::byte> expected = {std::byte{6}, std::byte{7}, std::byte{4}, std::byte{5},
                                           std::byte{2}, std::byte{3}, std::byte{0}, std::byte{1}};
  EXPECT_EQ(to, expected);
}

}  // namespace
}  // namespace levada
