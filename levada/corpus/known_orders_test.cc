#include "levada/corpus/known_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "levada/base/atomic_file.h"
#include "levada/base/fault_testing.h"
#include "levada/corpus/lengths_testing.h"
#include "levada/sources/megatron_testing.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

namespace fs = std::filesystem;

/// Sources of files in memory, and a folder that remembers every order.
class KnownOrderFiles : public ::testing::Test {
 protected:
  static SourceFiles source(const std::vector<std::vector<std::int64_t>>& lengths, DocumentShare documents = {}) {
    std::vector<OpenedFile> files;
    for (const auto& of_file : lengths) {
      std::vector<std::int64_t> ends{0};
      std::vector<std::int32_t> sequences;
      std::size_t bytes = 0;
      for (const auto length : of_file) {
        sequences.push_back(static_cast<std::int32_t>(length));
        ends.push_back(std::ssize(sequences));
        bytes += static_cast<std::size_t>(length);
      }
      const auto open =
          open_from({{"a.idx", raw_index(1, 1, sequences, ends).bytes()}, {"a.bin", std::string(bytes, 'x')}});
      files.push_back(
          {.path = "a",
           .tokens = std::make_unique<const TokenFile>("a", TokenFileOptions{.documents = documents, .open = open})});
    }
    return SourceFiles(std::move(files));
  }
  std::string folder() const { return dir_.file("cache/tokens"); }
  std::vector<fs::path> remembered() const {
    std::vector<fs::path> files;
    if (!fs::exists(folder())) return files;
    for (const auto& file : fs::directory_iterator(folder())) files.push_back(file.path());
    return files;
  }
  /// Returns the order, and whether it was made.
  std::pair<std::vector<std::vector<PackedPiece>>, bool> order_of(const SourceFiles& files, const KnownOrders& known,
                                                                  const PackingOptions& options = {
                                                                      .sequence = 64}) const {
    bool is_made = false;
    const auto order = known.order_of(files, options, [&](const PrepareProgress&) { is_made = true; });
    std::vector<std::vector<PackedPiece>> samples;
    for (std::int64_t sample = 0; sample < order.size(); ++sample) samples.push_back(order.pieces(sample));
    return {samples, is_made};
  }

  ScratchDir dir_;
  const std::vector<std::int64_t> some_ = some_lengths(3000, 1, 100), others_ = some_lengths(2000, 2, 90);
};

TEST_F(KnownOrderFiles, AreMadeOnce) {
  const KnownOrders known(folder(), {}, 0);
  const auto first = order_of(source({some_, others_}), known);
  EXPECT_TRUE(first.second);
  const auto again = order_of(source({some_, others_}), known);
  EXPECT_FALSE(again.second);
  EXPECT_EQ(again.first, first.first);
  EXPECT_EQ(order_of(source({some_, others_}), KnownOrders("")).first, first.first);
  EXPECT_EQ(remembered().size(), 1U);
}

TEST_F(KnownOrderFiles, BelongToTheirDocumentsAndOptions) {
  const KnownOrders known(folder(), {}, 0);
  const std::vector<std::int64_t> alike(1000, 50);
  std::size_t count = 0;
  const auto expect_new = [&](const SourceFiles& files, const PackingOptions& options = {.sequence = 64}) {
    const auto made = order_of(files, known, options);
    EXPECT_TRUE(made.second) << count;
    EXPECT_EQ(made.first, order_of(files, KnownOrders(""), options).first);
    EXPECT_EQ(remembered().size(), ++count);
  };
  expect_new(source({some_, others_}));
  expect_new(source({others_, some_}));
  expect_new(source({some_}));
  expect_new(source({some_}), {.sequence = 32});
  expect_new(source({some_}), {.sequence = 64, .pad_to = 4});
  expect_new(source({some_}), {.sequence = 64, .max_pieces = 1});
  expect_new(source({some_}, {0, 0.5}));
  expect_new(source({some_}, {0.5, 1}));
  // Two parts of the same size.
  expect_new(source({alike}, {0, 0.5}));
  expect_new(source({alike}, {0.5, 1}));
}

TEST_F(KnownOrderFiles, AreNotWrittenIfTheyAreSmallOrCannotBe) {
  EXPECT_TRUE(order_of(source({some_}), KnownOrders(folder())).second);
  EXPECT_EQ(remembered().size(), 0U);
  dir_.write("file", "");
  const auto without = order_of(source({some_}), KnownOrders("")).first;
  EXPECT_EQ(order_of(source({some_}), KnownOrders(dir_.file("file/below"), {}, 0)).first, without);
  fs::create_directories(folder());
  fs::permissions(folder(), fs::perms::all);
  EXPECT_EQ(order_of(source({some_}), KnownOrders(folder(), {}, 0)).first, without);
  EXPECT_EQ(remembered().size(), 0U) << "other users can replace them";
}

TEST_F(KnownOrderFiles, AreMadeAgainIfTheirFileIsDamaged) {
  const KnownOrders known(folder(), {}, 0);
  const auto whole = order_of(source({some_}), known).first;
  const auto path = remembered().at(0).string();
  const auto bytes = content(path);
  std::ofstream(path, std::ios::trunc) << bytes.substr(1);
  EXPECT_EQ(order_of(source({some_}), known), std::pair(whole, true));
  EXPECT_EQ(content(path), bytes);
}

TEST_F(KnownOrderFiles, AreWaitedForWhileAnotherProcessMakesThem) {
  const KnownOrders known(folder(), {}, 0);
  const auto whole = order_of(source({some_}), known).first;
  const auto path = remembered().at(0).string();
  const auto bytes = content(path);
  fs::remove(path);
  auto other = std::make_unique<AtomicFile>(path, AtomicFile::Write(), 0600);
  std::vector<std::string> awaited;
  const auto got = known.order_of(source({some_}), {.sequence = 64}, [&](const PrepareProgress& progress) {
    awaited.push_back(progress.path);
    if (awaited.size() < 3) return;
    other->write(as_bytes(bytes));
    other->publish(false);
    other.reset();
  });
  EXPECT_EQ(awaited, std::vector<std::string>(3, path));
  EXPECT_EQ(got.pieces(0), whole.at(0));
}

TEST_F(KnownOrderFiles, CanBeAbortedWhileTheyAreMadeOrWaitedFor) {
  const KnownOrders known(folder(), {}, 0);
  const auto files = source({some_});
  const auto abort = [](const PrepareProgress&) { throw std::runtime_error("aborted"); };
  EXPECT_THROW(known.order_of(files, {.sequence = 64}, abort), std::runtime_error);
  EXPECT_EQ(remembered().size(), 0U);
  order_of(files, known);
  const auto path = remembered().at(0).string();
  fs::remove(path);
  const AtomicFile other(path, AtomicFile::Write(), 0600);
  EXPECT_THROW(known.order_of(files, {.sequence = 64}, abort), std::runtime_error);
}

}  // namespace
}  // namespace levada
