#include "levada/sources/known_indexes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <random>

#include "levada/base/fault_testing.h"
#include "levada/sources/megatron_testing.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"
#include "levada/sources/token_file.h"

namespace levada {
namespace {

namespace fs = std::filesystem;
using std::chrono::hours;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A pair of files, and a folder that remembers every .idx.
class KnownIndexFiles : public ::testing::Test {
 protected:
  void write(const RawIndex& idx, std::string bin, hours age = hours(1)) const {
    dir_.write("a.bin", bin);
    fs::last_write_time(dir_.write("a.idx", idx.bytes()), fs::file_time_type::clock::now() - age);
  }
  TokenFile open(DocumentShare documents = {}, std::uint64_t min_bytes = 0) const {
    const auto known = std::make_shared<const KnownIndexes>(folder(), min_bytes);
    return {dir_.file("a"), {.documents = documents, .known_indexes = known}};
  }
  TokenFile read(DocumentShare documents = {}) const { return {dir_.file("a"), {.documents = documents}}; }
  bool is_known() const { return open().index_bytes() == 0; }
  std::string folder() const { return dir_.file("cache/tokens"); }
  std::vector<fs::path> remembered() const {
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(folder())) files.push_back(file.path());
    return files;
  }
  static std::vector<std::int64_t> tokens_of(const TokenFile& file) {
    const auto count = file.contents().tokens;
    if (count < 2) return {};
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(count) - 1), labels(tokens.size());
    TokenWriter to({tokens}, {labels});
    ReadState state;
    file.read(0, count, to, state);
    tokens.push_back(labels.back());
    return tokens;
  }

  ScratchDir dir_;
};

const RawIndex three_documents = raw_index(1, 1, {2, 3, 1, 4}, {0, 1, 3, 4});

TEST_F(KnownIndexFiles, AreReadOnce) {
  write(three_documents, "0123456789");
  const auto first = open();
  EXPECT_EQ(first.index_bytes(), three_documents.bytes().size());
  const auto again = open();
  EXPECT_EQ(again.index_bytes(), 0);
  EXPECT_EQ(again.contents(), first.contents());
  EXPECT_EQ(tokens_of(again), tokens_of(first));
  std::vector<std::int64_t> lengths;
  again.visit_documents([&](std::int64_t tokens) { lengths.push_back(tokens); });
  EXPECT_THAT(lengths, ElementsAre(2, 4, 4));
  fs::rename(dir_.file("a.idx"), dir_.file("b.idx"));
  fs::rename(dir_.file("a.bin"), dir_.file("b.bin"));
  const auto known = std::make_shared<const KnownIndexes>(folder(), 0);
  EXPECT_EQ(TokenFile(dir_.file("b"), {.known_indexes = known}).contents(), first.contents());
}

TEST_F(KnownIndexFiles, HaveTheSamePartsOfSplits) {
  std::mt19937_64 random(7);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
  };
  for (int round = 0; round < 60; ++round) {
    std::vector<std::int32_t> lengths;
    std::vector<std::int64_t> documents{0};
    for (auto left = below(40); left >= 0; --left) {
      for (auto sequences = below(4); sequences > 0; --sequences)
        lengths.push_back(static_cast<std::int32_t>(below(5)));
      documents.push_back(static_cast<std::int64_t>(lengths.size()));
    }
    std::int64_t tokens = 0;
    for (const auto length : lengths) tokens += length;
    std::vector<std::int32_t> stored;
    for (std::int64_t token = 0; token < tokens; ++token) stored.push_back(static_cast<std::int32_t>(below(1000)));
    auto index = raw_index(4, 4, lengths, documents);
    if (round % 3 == 0) index.modes.assign(lengths.size(), 0);
    write(index, raw_bin(stored), hours(round + 1));
    open();
    for (const auto& [begin, end] :
         {std::pair(0.0, 0.7), std::pair(0.7, 0.9), std::pair(0.9, 1.0), std::pair(0.5, 0.5)}) {
      const auto known = open({begin, end}), whole = read({begin, end});
      EXPECT_EQ(known.index_bytes(), 0) << round;
      EXPECT_EQ(known.contents(), whole.contents()) << round;
      EXPECT_EQ(tokens_of(known), tokens_of(whole)) << round;
    }
  }
}

TEST_F(KnownIndexFiles, AreForgottenOnceTheyChange) {
  write(three_documents, "0123456789");
  open();
  const auto written = fs::last_write_time(dir_.file("a.idx"));
  fs::last_write_time(dir_.file("a.idx"), written - hours(1));
  EXPECT_FALSE(is_known()) << "another modification time";
  EXPECT_TRUE(is_known());
  write(raw_index(1, 1, {2, 3, 1, 4}, {0, 2, 3, 4}), "0123456789");
  fs::last_write_time(dir_.file("a.idx"), written);
  EXPECT_FALSE(is_known()) << "other documents";
  dir_.write("a.bin", "012345678");
  EXPECT_THAT(fault_of([&] { open(); }), HasSubstr("has only 9 bytes"));
}

TEST_F(KnownIndexFiles, AreRefusedIfTheirPairIsReplacedWhileItIsOpened) {
  write(three_documents, "0123456789");
  open();
  ASSERT_TRUE(is_known());
  dir_.write("new.bin", "9876543210");
  dir_.write("new.idx", raw_index(1, 1, {5, 5}, {0, 1, 2}).bytes());
  const auto replaced = [&](const std::string& path) {
    if (path.ends_with(".bin")) {
      for (const auto* name : {".idx", ".bin"}) fs::rename(dir_.file("new") + name, dir_.file("a") + name);
    }
    return open_file(path);
  };
  const auto known = std::make_shared<const KnownIndexes>(folder(), 0);
  EXPECT_THAT(fault_of([&] { TokenFile(dir_.file("a"), {.known_indexes = known, .open = replaced}); }),
              HasSubstr("a.idx was removed or replaced"));
}

TEST_F(KnownIndexFiles, AreNotRememberedIfThatMayBeWrong) {
  write(three_documents, "0123456789", hours(0));
  open();
  EXPECT_FALSE(is_known()) << "it was just written, so it may change within the same tick of the clock";
  write(three_documents, "0123456789", hours(-1));
  open();
  EXPECT_FALSE(is_known()) << "it was written in the future";
  auto swapped = three_documents;
  std::swap(swapped.places[1], swapped.places[3]);
  swapped.lengths = {2, 1, 1, 1};
  write(swapped, "0123456789");
  open();
  EXPECT_FALSE(is_known()) << "its sequences are not in storage order";
  write(three_documents, "0123456789");
  static_cast<void>(open({}, 1 << 20));
  EXPECT_FALSE(is_known()) << "it is small";
}

TEST_F(KnownIndexFiles, AreNotRememberedIfTheyChangeAfterTheyWereRead) {
  MemoryFile idx("a.idx", three_documents.bytes());
  const MemoryFile bin("a.bin", "0123456789");
  idx.now.modified_ns = 1'000'000'000;
  const auto before = idx.identity();
  const auto index = read_megatron_index(idx, bin);
  const KnownIndexes known(folder(), 0);
  idx.now.modified_ns += 1;
  known.add(idx, before, bin, index);
  EXPECT_FALSE(known.find(idx, bin));
  idx.now.modified_ns -= 1;
  EXPECT_FALSE(known.find(idx, bin));
  known.add(idx, before, bin, index);
  EXPECT_TRUE(known.find(idx, bin));
}

TEST_F(KnownIndexFiles, AreNotBelievedIfTheirFileIsDamagedOrUntrusted) {
  write(three_documents, "0123456789");
  const auto whole = open().contents();
  ASSERT_EQ(remembered().size(), 1U);
  const auto file = remembered().front().string();
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const auto text = content(file);
  for (const auto& [part, other] : std::map<std::string, std::string>{{"\"tokens\":10", "\"tokens\":9"},
                                                                      {"\"tokens\":10", "\"tokens\":-10"},
                                                                      {"\"documents\":3", "\"documents\":-1"},
                                                                      {"\"documents\":3", "\"documents\":4"},
                                                                      {"\"sequences\":4", "\"sequences\":1e3"},
                                                                      {"\"dtype\":1", "\"dtype\":9"},
                                                                      {"\"version\":1", "\"version\":2"},
                                                                      {"\"digest\":\"", "\"digest\":["},
                                                                      {"{", ""}}) {
    auto changed = text;
    ASSERT_NE(changed.find(part), changed.npos) << part;
    std::ofstream(file) << changed.replace(changed.find(part), part.size(), other);
    EXPECT_EQ(open().contents(), whole) << other;
    EXPECT_EQ(content(file), text) << "it is written again: " << other;
  }
  fs::permissions(file, fs::perms::all);
  EXPECT_FALSE(is_known()) << "other users can write to it";
  EXPECT_TRUE(is_known());
  fs::permissions(folder(), fs::perms::all);
  EXPECT_FALSE(is_known()) << "other users can replace it";
  EXPECT_FALSE(is_known());
}

TEST_F(KnownIndexFiles, AreRemovedIfNoStartUsesThem) {
  write(three_documents, "0123456789");
  open();
  const auto trust = FolderTrust::of(folder(), "the folder", "");
  KnownFiles::remove_unused(folder(), trust);
  EXPECT_EQ(remembered().size(), 1U);
  const auto old = fs::file_time_type::clock::now() - hours(31 * 24);
  fs::last_write_time(remembered().front(), old);
  EXPECT_TRUE(is_known());
  EXPECT_GT(fs::last_write_time(remembered().front()), old) << "it has been used";
  fs::last_write_time(remembered().front(), old);
  KnownFiles::remove_unused(folder(), trust);
  EXPECT_EQ(remembered().size(), 0U);
}

}  // namespace
}  // namespace levada
