#include "levada/corpus/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "levada/base/refusal_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int64_t> some_lengths(std::size_t count, unsigned seed, std::int64_t most) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> lengths(count);
  // Many short and few long ones, as with documents.
  for (auto& length : lengths)
    length = 1 + static_cast<std::int64_t>(
                     std::exp2(static_cast<double>(random() % 1000) / 1000.0 * std::log2(static_cast<double>(most))));
  return lengths;
}

PackedOrder order_of(const std::vector<std::int64_t>& lengths, std::int64_t sequence, std::int64_t pad_to = 1) {
  return PackedOrder(
      static_cast<std::int64_t>(lengths.size()),
      [lengths](std::int64_t document) { return lengths[static_cast<std::size_t>(document)]; }, sequence, pad_to);
}

TEST(Packing, PutsEachItemIntoTheFullestBinThatFits) {
  // 6 and 5 open two bins; 4 fits the first exactly, 3 and 2 the second.
  EXPECT_THAT(pack_best_fit(std::vector<std::int64_t>{2, 3, 4, 5, 6}, 10).bin_of, ElementsAre(1, 1, 0, 1, 0));
  // 3 fits both; the first has less room.
  EXPECT_THAT(pack_best_fit(std::vector<std::int64_t>{7, 6, 3}, 10).bin_of, ElementsAre(0, 1, 0));
  const auto whole = pack_best_fit(std::vector<std::int64_t>{10, 10, 1}, 10);
  EXPECT_THAT(whole.bin_of, ElementsAre(0, 1, 2));
  EXPECT_EQ(whole.bins, 3);
  EXPECT_EQ(pack_best_fit({}, 10).bins, 0);
}

TEST(Packing, LimitsTheItemsPerBin) {
  const std::vector<std::int64_t> sizes = {4, 3, 2, 1, 1, 1};
  EXPECT_THAT(pack_best_fit(sizes, 12).bin_of, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(pack_best_fit(sizes, 12, 2).bin_of, ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_EQ(pack_best_fit(sizes, 12, 1).bins, 6);
}

/// Computes the same by checking every bin.
std::vector<std::uint32_t> plain_best_fit(const std::vector<std::int64_t>& sizes, std::int64_t capacity) {
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t i = 0; i < sizes.size(); ++i) order.emplace_back(-sizes[i], i);
  std::ranges::sort(order);
  std::vector<std::int64_t> room;
  std::vector<std::uint32_t> bin_of(sizes.size());
  for (const auto& [negative, thing] : order) {
    std::size_t best = room.size();
    for (std::size_t bin = 0; bin < room.size(); ++bin) {
      if (room[bin] >= -negative && (best == room.size() || room[bin] < room[best])) best = bin;
    }
    if (best == room.size()) room.push_back(capacity);
    room[best] += negative;
    bin_of[thing] = static_cast<std::uint32_t>(best);
  }
  return bin_of;
}

TEST(Packing, MatchesAnExhaustiveSearchOfBins) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    auto sizes = some_lengths(400, seed, 100);
    for (auto& size : sizes) size = std::min<std::int64_t>(size, 100);
    EXPECT_EQ(pack_best_fit(sizes, 100).bin_of, plain_best_fit(sizes, 100));
  }
}

TEST(Packing, CoversEachPositionOnceWithoutOverfullSamples) {
  for (const std::int64_t sequence : {1, 3, 64, 1000}) {
    const auto lengths = some_lengths(40'000, 5, 300);
    const auto order = order_of(lengths, sequence);
    std::map<std::int64_t, std::set<std::int64_t>> begins;  // positions at which each document's pieces begin
    std::int64_t most = 0;
    for (std::int64_t sample = 0; sample < order.size(); ++sample) {
      std::int64_t filled = 0;
      for (std::int64_t number = 0; number < order.pieces(sample); ++number) {
        const auto piece = order.piece(sample, number);
        ASSERT_GT(piece.positions, 0);
        ASSERT_EQ(piece.from % sequence, 0);
        const auto left = lengths[static_cast<std::size_t>(piece.document)] - 1 - piece.from;
        ASSERT_EQ(piece.positions, std::min(sequence, left)) << "of document " << piece.document;
        ASSERT_TRUE(begins[piece.document].insert(piece.from).second);
        filled += piece.positions;
      }
      ASSERT_LE(filled, sequence);
      most = std::max(most, order.pieces(sample) + (filled < sequence ? 1 : 0));
    }
    std::int64_t positions = 0;
    for (std::size_t document = 0; document < lengths.size(); ++document) {
      const auto here = lengths[document] - 1;
      ASSERT_EQ(static_cast<std::int64_t>(begins[static_cast<std::int64_t>(document)].size()),
                (here + sequence - 1) / sequence);
      positions += here;
    }
    EXPECT_EQ(order.positions(), positions);
    EXPECT_EQ(order.max_segments(), most);
  }
}

TEST(Packing, StaysWithinWindowsInStorageOrder) {
  const auto lengths = some_lengths(3 * PackedOrder::window, 6, 300);
  const auto order = order_of(lengths, 500);
  std::int64_t window = 0, first = -1;
  for (std::int64_t sample = 0; sample < order.size(); ++sample) {
    const auto here = order.piece(sample, 0).document;
    ASSERT_GT(here, first);
    first = here;
    ASSERT_GE(here / PackedOrder::window, window);
    window = here / PackedOrder::window;
    for (std::int64_t number = 1; number < order.pieces(sample); ++number) {
      const auto document = order.piece(sample, number).document;
      ASSERT_GT(document, order.piece(sample, number - 1).document);
      ASSERT_EQ(document / PackedOrder::window, window);
    }
  }
}

TEST(Packing, CutsLongDocumentsAndPacksTheRemainder) {
  const auto order = order_of({22, 1, 11, 4, 0}, 10);
  ASSERT_EQ(order.size(), 4);
  EXPECT_EQ(order.piece(0, 0), (PackedPiece{0, 0, 10}));
  EXPECT_EQ(order.piece(1, 0), (PackedPiece{0, 10, 10}));
  EXPECT_EQ(order.pieces(2), 2);
  EXPECT_EQ(order.piece(2, 0), (PackedPiece{0, 20, 1}));
  EXPECT_EQ(order.piece(2, 1), (PackedPiece{3, 0, 3}));
  EXPECT_EQ(order.piece(3, 0), (PackedPiece{2, 0, 10}));
  EXPECT_EQ(order.positions(), 21 + 10 + 3);
  EXPECT_EQ(order.max_segments(), 3);
}

TEST(Packing, RoundsPiecesUp) {
  const auto order = order_of({4, 3, 6}, 8, 4);
  ASSERT_EQ(order.size(), 2);
  EXPECT_EQ(order.pieces(0), 2);
  EXPECT_EQ(order.piece(0, 1), (PackedPiece{1, 0, 2}));
  EXPECT_EQ(order.piece(1, 0), (PackedPiece{2, 0, 5}));
  EXPECT_EQ(order.positions(), 3 + 2 + 5);
  EXPECT_EQ(order.max_segments(), 2);
}

TEST(Packing, OnePiecePerSampleKeepsStorageOrder) {
  const std::vector<std::int64_t> lengths = {4, 22, 1, 3, 11, 0, 7};
  const PackedOrder order(
      7, [&](std::int64_t document) { return lengths[static_cast<std::size_t>(document)]; }, 10, 2, 1);
  std::vector<PackedPiece> pieces;
  for (std::int64_t sample = 0; sample < order.size(); ++sample) {
    ASSERT_EQ(order.pieces(sample), 1);
    pieces.push_back(order.piece(sample, 0));
  }
  EXPECT_EQ(pieces, (std::vector<PackedPiece>{
                        {0, 0, 3}, {1, 0, 10}, {1, 10, 10}, {1, 20, 1}, {3, 0, 2}, {4, 0, 10}, {6, 0, 6}}));
  EXPECT_EQ(order.positions(), 3 + 21 + 2 + 10 + 6);
  EXPECT_EQ(order.max_segments(), 2);
}

TEST(Packing, NamesTheRequiredMemoryIfTooLittleIsAvailable) {
  constexpr std::int64_t documents = 1'000'000;
  const auto make = [&](std::int64_t tokens, std::int64_t max_pieces, std::uint64_t available) {
    return PackedOrder(
        documents, [=](std::int64_t) { return tokens; }, 4096, 1, max_pieces,
        [=] { return MemoryLimits{.total = std::uint64_t{1} << 30, .available = available}; });
  };
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  // 4 bytes per document if samples are few; 12 per document that is a sample; 20 per sample if documents fill several.
  for (const auto& [tokens, max_pieces, megabytes] :
       {std::tuple{5, 1'000'000, 4}, std::tuple{5, 1, 12}, std::tuple{4097, 1'000'000, 20}}) {
    const auto bytes = static_cast<std::uint64_t>(megabytes) * documents;
    EXPECT_EQ(make(tokens, max_pieces, bytes + mib).positions(), documents * (tokens - 1));
    EXPECT_THAT(refusal([&, tokens = tokens, max_pieces = max_pieces] { make(tokens, max_pieces, bytes - mib); }),
                AllOf(HasSubstr("the order of 1000000 packed documents takes about"),
                      HasSubstr(", or cut documents instead of packing them")));
  }
}

TEST(Packing, FillsSamplesAlmostCompletely) {
  const auto order = order_of(some_lengths(100'000, 7, 20'000), 4096);
  EXPECT_GT(static_cast<double>(order.positions()) / static_cast<double>(order.size() * 4096), 0.995);
}

}  // namespace
}  // namespace levada
