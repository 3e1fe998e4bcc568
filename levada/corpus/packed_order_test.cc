#include "levada/corpus/packed_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "levada/base/fault_testing.h"
#include "levada/base/refusal_testing.h"
#include "levada/corpus/lengths_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

PackedDocuments documents_of(const std::vector<std::int64_t>& lengths) {
  return {.documents = std::ssize(lengths),
          .tokens = std::reduce(lengths.begin(), lengths.end()),
          .visit = [&](const auto& visit) { std::ranges::for_each(lengths, visit); }};
}

PackedOrder order_of(const std::vector<std::int64_t>& lengths, const PackingOptions& options) {
  return {options, documents_of(lengths)};
}

/// Finds the documents of pieces.
class Documents {
 public:
  explicit Documents(const std::vector<std::int64_t>& lengths) : begins_(lengths.size() + 1) {
    std::partial_sum(lengths.begin(), lengths.end(), begins_.begin() + 1);
  }
  std::int64_t begin(std::size_t document) const { return begins_[document]; }
  std::size_t of(const PackedPiece& piece) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(begins_, piece.begin) - begins_.begin()) - 1;
  }

 private:
  std::vector<std::int64_t> begins_;
};

TEST(PackedOrder, CoversEachPositionOnceWithoutOverfullSamples) {
  const auto lengths = some_lengths(40'000, 5, 300);
  const Documents documents(lengths);
  for (const std::int64_t sequence : {1, 3, 64, 1000}) {
    const auto order = order_of(lengths, {.sequence = sequence});
    std::map<std::size_t, std::set<std::int64_t>> begins;  // positions at which each document's pieces begin
    std::int64_t max_segments = 0;
    for (std::int64_t sample = 0; sample < order.size(); ++sample) {
      std::int64_t filled = 0;
      const auto pieces = order.pieces(sample);
      for (const auto& piece : pieces) {
        const auto document = documents.of(piece);
        const auto from = piece.begin - documents.begin(document);
        ASSERT_GT(piece.positions, 0);
        ASSERT_EQ(from % sequence, 0);
        ASSERT_EQ(piece.positions, std::min(sequence, lengths[document] - 1 - from)) << "of document " << document;
        ASSERT_TRUE(begins[document].insert(from).second);
        filled += piece.positions;
      }
      ASSERT_LE(filled, sequence);
      max_segments = std::max(max_segments, std::ssize(pieces) + (filled < sequence ? 1 : 0));
    }
    std::int64_t positions = 0;
    for (std::size_t document = 0; document < lengths.size(); ++document) {
      const auto here = lengths[document] - 1;
      ASSERT_EQ(std::ssize(begins[document]), (here + sequence - 1) / sequence);
      positions += here;
    }
    EXPECT_EQ(order.positions(), positions);
    EXPECT_EQ(order.max_segments(), max_segments);
  }
}

TEST(PackedOrder, StaysWithinWindowsInStorageOrder) {
  const auto lengths = some_lengths(3 * PackedOrder::window, 6, 300);
  const Documents documents(lengths);
  const auto order = order_of(lengths, {.sequence = 500});
  std::int64_t window = 0, first = -1;
  for (std::int64_t sample = 0; sample < order.size(); ++sample) {
    std::vector<std::int64_t> here;
    for (const auto& piece : order.pieces(sample)) here.push_back(static_cast<std::int64_t>(documents.of(piece)));
    ASSERT_GT(here.front(), first);
    first = here.front();
    ASSERT_GE(here.front() / PackedOrder::window, window);
    window = here.front() / PackedOrder::window;
    ASSERT_TRUE(std::ranges::is_sorted(here, std::less_equal()));
    ASSERT_EQ(here.back() / PackedOrder::window, window);
  }
}

TEST(PackedOrder, CutsLongDocumentsAndPacksTheRemainder) {
  const auto order = order_of({22, 1, 11, 4, 0}, {.sequence = 10});
  ASSERT_EQ(order.size(), 4);
  EXPECT_THAT(order.pieces(0), ElementsAre(PackedPiece{0, 10}));
  EXPECT_THAT(order.pieces(1), ElementsAre(PackedPiece{10, 10}));
  EXPECT_THAT(order.pieces(2), ElementsAre(PackedPiece{20, 1}, PackedPiece{34, 3}));
  EXPECT_THAT(order.pieces(3), ElementsAre(PackedPiece{23, 10}));
  EXPECT_EQ(order.positions(), 21 + 10 + 3);
  EXPECT_EQ(order.max_segments(), 3);
}

TEST(PackedOrder, RoundsPiecesUp) {
  const auto order = order_of({4, 3, 6}, {.sequence = 8, .pad_to = 4});
  ASSERT_EQ(order.size(), 2);
  EXPECT_THAT(order.pieces(0), ElementsAre(PackedPiece{0, 3}, PackedPiece{4, 2}));
  EXPECT_THAT(order.pieces(1), ElementsAre(PackedPiece{7, 5}));
  EXPECT_EQ(order.positions(), 3 + 2 + 5);
  EXPECT_EQ(order.max_segments(), 2);
}

TEST(PackedOrder, OnePiecePerSampleKeepsStorageOrder) {
  const auto order = order_of({4, 22, 1, 3, 11, 0, 7}, {.sequence = 10, .pad_to = 2, .max_pieces = 1});
  std::vector<PackedPiece> all;
  for (std::int64_t sample = 0; sample < order.size(); ++sample) {
    const auto pieces = order.pieces(sample);
    ASSERT_EQ(pieces.size(), 1U);
    all.push_back(pieces.front());
  }
  EXPECT_EQ(all, (std::vector<PackedPiece>{{0, 3}, {4, 10}, {14, 10}, {24, 1}, {27, 2}, {30, 10}, {41, 6}}));
  EXPECT_EQ(order.positions(), 3 + 21 + 2 + 10 + 6);
  EXPECT_EQ(order.max_segments(), 2);
}

TEST(PackedOrder, NamesTheRequiredMemoryIfTooLittleIsAvailable) {
  constexpr std::int64_t documents = 1'000'000;
  const auto make = [&](std::int64_t tokens, std::int64_t max_pieces, std::uint64_t available) {
    const std::vector<std::int64_t> lengths(documents, tokens);
    return PackedOrder({.sequence = 4096, .max_pieces = max_pieces}, documents_of(lengths),
                       [=] { return MemoryLimits{.total = std::uint64_t{1} << 30, .available = available}; });
  };
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  // 12 bytes per document, and 4 more per document that is a sample.
  for (const auto& [tokens, max_pieces, megabytes] : {std::tuple{5, 1'000'000, 12}, std::tuple{5, 1, 16}}) {
    const auto bytes = static_cast<std::uint64_t>(megabytes) * documents;
    EXPECT_EQ(make(tokens, max_pieces, bytes + mib).positions(), documents * (tokens - 1));
    EXPECT_THAT(refusal([&, tokens = tokens, max_pieces = max_pieces] { make(tokens, max_pieces, bytes - mib); }),
                AllOf(HasSubstr("the order of 1000000 packed documents takes about"),
                      HasSubstr(", or cut documents instead of packing them")));
  }
}

TEST(PackedOrder, FillsSamplesAlmostCompletely) {
  const auto order = order_of(some_lengths(100'000, 7, 20'000), {.sequence = 4096});
  EXPECT_GT(static_cast<double>(order.positions()) / static_cast<double>(order.size() * 4096), 0.995);
}

TEST(PackedOrder, NeverTakesMoreThanItsBound) {
  unsigned seed = 0;
  for (const std::int64_t max : {1, 2, 40, 900}) {
    for (const auto& options : {PackingOptions{.sequence = 8}, PackingOptions{.sequence = 64, .pad_to = 16},
                                PackingOptions{.sequence = 64, .max_pieces = 1},
                                PackingOptions{.sequence = 64, .pad_to = 4, .max_pieces = 3}}) {
      const auto lengths = some_lengths(PackedOrder::window + 500, ++seed, max);
      const ScratchDir dir;
      AtomicFile file(dir.file("order"));
      PackedOrder::write(file, std::string(32, 'k'), options, documents_of(lengths));
      file.publish(false);
      constexpr std::uint64_t trailer = 104;
      EXPECT_LE(content(dir.file("order")).size(), PackedOrder::max_bytes(options, documents_of(lengths)) + trailer);
    }
  }
}

/// An order of three windows, in a file.
class PackedOrderFile : public ::testing::Test {
 protected:
  PackedOrderFile() : lengths_(some_lengths(2 * PackedOrder::window + 100, 3, 200)) {
    // A window without any sample.
    std::fill_n(lengths_.begin() + PackedOrder::window, PackedOrder::window, 1);
    AtomicFile file(path());
    PackedOrder::write(file, key_, options_, documents_of(lengths_));
    file.publish(false);
    ::chmod(path().c_str(), 0600);
  }
  std::string path() const { return dir_.file("order"); }
  std::optional<PackedOrder> open(const std::string& key) const {
    return PackedOrder::open(path(), FolderTrust::of(dir_.file(""), "the folder", ""), key, options_);
  }
  std::optional<PackedOrder> open() const { return open(key_); }
  void write(const std::string& bytes) const { std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes; }

  ScratchDir dir_;
  std::vector<std::int64_t> lengths_;
  std::string key_ = "0123456789abcdef0123456789abcdef";
  PackingOptions options_{.sequence = 128, .pad_to = 2};
};

TEST_F(PackedOrderFile, HoldsTheOrder) {
  const auto order = order_of(lengths_, options_);
  auto stored = open();
  ASSERT_TRUE(stored);
  std::filesystem::remove(path());
  EXPECT_EQ(stored->size(), order.size());
  EXPECT_EQ(stored->positions(), order.positions());
  EXPECT_EQ(stored->max_segments(), order.max_segments());
  const auto moved = std::move(*stored);
  for (std::int64_t sample = 0; sample < order.size(); ++sample) {
    ASSERT_EQ(moved.pieces(sample), order.pieces(sample)) << sample;
  }
}

TEST_F(PackedOrderFile, IsNotOpenedIfItIsOfAnotherKeyOrUntrusted) {
  EXPECT_FALSE(open("0123456789abcdef0123456789abcdee"));
  EXPECT_TRUE(open());
  ::chmod(path().c_str(), 0666);
  EXPECT_FALSE(open());
  std::filesystem::remove(path());
  EXPECT_FALSE(open());
}

TEST_F(PackedOrderFile, IsNotOpenedIfItsTableIsDamaged) {
  const auto whole = content(path());
  const auto table = whole.size() - 3 * 24 - 104;
  for (std::size_t at = table; at < whole.size(); ++at) {
    auto changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x40);
    write(changed);
    EXPECT_FALSE(open()) << at - table;
  }
  for (const auto size : {std::size_t{0}, std::size_t{50}, table, whole.size() - 1}) {
    write(whole.substr(0, size));
    EXPECT_FALSE(open()) << size;
  }
  write(whole);
  EXPECT_TRUE(open());
}

TEST_F(PackedOrderFile, NamesADamagedBlock) {
  auto changed = content(path());
  changed[1000] = static_cast<char>(changed[1000] ^ 1);
  write(changed);
  const auto stored = open();
  ASSERT_TRUE(stored);
  EXPECT_THAT(fault_of([&] { stored->pieces(0); }),
              AllOf(HasSubstr("SourceError: " + path()),
                    HasSubstr("which holds the order of packed samples, is damaged: remove it, and it is made again")));
  const auto order = order_of(lengths_, options_);
  EXPECT_EQ(stored->pieces(order.size() - 1), order.pieces(order.size() - 1)) << "of another block";
  write("");
  EXPECT_THAT(fault_of([&] { stored->pieces(0); }), HasSubstr("was cut short"));
}

}  // namespace
}  // namespace levada
