#include "levada/tokens/entry_verifier.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "levada/base/fault_testing.h"
#include "levada/tokens/token_caching_testing.h"

namespace levada {
namespace {

namespace fs = std::filesystem;

/// Changes a byte halfway between two of the 64 blocks that are read when a file is opened.
void flip_byte(const std::string& bin) {
  const auto at = static_cast<std::streamoff>(fs::file_size(bin) / 63 * 31 + fs::file_size(bin) / 126);
  std::fstream file(bin, std::ios::in | std::ios::out | std::ios::binary);
  const auto byte = static_cast<char>(file.seekg(at).get() ^ 1);
  file.seekp(at).put(byte);
}

class EntryVerifying : public TokenCaching {
 protected:
  std::unique_ptr<TokenFile> open_entry(const TokenCache& cache) const {
    return std::make_unique<TokenFile>(
        entry_.prefix, TokenFileOptions{.open = [&](const std::string& path) { return cache.open(path); }});
  }
  /// Returns how often verify() has read.
  int num_reads(const std::function<void()>& between_reads = {}) {
    int reads = 0;
    open().folder().verify(entry_.prefix, [&] {
      ++reads;
      if (between_reads) between_reads();
    });
    return reads;
  }
  bool has_mark() const { return fs::exists(entry_.prefix + ".verified"); }
  /// Waits until `is_done`; returns false after a minute.
  static bool wait_for(const std::function<bool()>& is_done) {
    for (int i = 0; i < 6000; ++i) {
      if (is_done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  CachedTokens entry_ = tokenize_alone(write_large(3));
  const std::string bin_ = entry_.prefix + ".bin";
};

TEST_F(EntryVerifying, DetectsDamageBetweenTheSampledBlocks) {
  flip_byte(bin_);
  const auto cache = std::make_shared<TokenCache>(TokenCacheOptions{.dir = dir_.file("cache")});
  const auto file = open_entry(*cache);
  ASSERT_EQ(file->contents().digest, entry_.digest) << "the damage is to be one that opening misses";
  EntryVerifier verifier(cache);
  std::string fault;
  ASSERT_TRUE(wait_for([&] {
    fault = fault_of([&] { verifier.use(*file); });
    return fault != "no fault";
  }));
  EXPECT_EQ(fault, "SourceError: " + entry_.prefix +
                       ".bin or its .idx is damaged: remove both to tokenize the text again; "
                       "batches of this run may hold damaged tokens: resume from an earlier state");
  EXPECT_FALSE(has_mark());
}

TEST_F(EntryVerifying, MarksAGoodEntrySoLaterRunsSkipIt) {
  {
    const auto cache = std::make_shared<TokenCache>(TokenCacheOptions{.dir = dir_.file("cache")});
    const auto file = open_entry(*cache);
    EntryVerifier verifier(cache);
    verifier.use(*file);
    ASSERT_TRUE(wait_for([&] { return has_mark(); }));
    verifier.use(*file);
  }
  EXPECT_EQ(num_reads(), 0);
  EXPECT_EQ(tokenize_alone(dir_.file("large.jsonl")).bytes_read, 0);
  EXPECT_EQ(num_reads(), 0);
}

TEST_F(EntryVerifying, ReadsAnEntryAgainAfterAWrite) {
  EXPECT_GT(num_reads(), 0);
  EXPECT_EQ(num_reads(), 0);
  flip_byte(bin_);
  EXPECT_THROW(num_reads(), DamagedEntry);
  flip_byte(bin_);
  EXPECT_GT(num_reads(), 0);
  EXPECT_EQ(num_reads(), 0);
}

TEST_F(EntryVerifying, IgnoresMarksThatOthersMayHaveWritten) {
  const auto mark = entry_.prefix + ".verified";
  num_reads();
  ASSERT_EQ(::chmod(mark.c_str(), 0660), 0);
  EXPECT_GT(num_reads(), 0);
  EXPECT_EQ(num_reads(), 0);
  std::ofstream(mark) << "forged\n";
  EXPECT_GT(num_reads(), 0);
  if (::chown(mark.c_str(), 12345, 12345) != 0) return;  // Only root can do that.
  EXPECT_GT(num_reads(), 0);
}

TEST_F(EntryVerifying, DoesNotMarkAPartlyReadEntry) {
  EXPECT_THROW(num_reads([] { throw 1; }), int);
  EXPECT_FALSE(has_mark());
}

TEST_F(EntryVerifying, IgnoresAnEntryThatIsReplacedDuringReading) {
  flip_byte(bin_);
  EXPECT_GT(num_reads([&] { fs::last_write_time(bin_, fs::file_time_type::clock::now()); }), 0);
  EXPECT_FALSE(has_mark());
}

TEST_F(EntryVerifying, EvictsTheMarkWithItsEntry) {
  num_reads();
  ASSERT_TRUE(has_mark());
  open().folder().prune(0);
  EXPECT_THAT(names_in_cache(), ::testing::IsEmpty());
}

TEST_F(EntryVerifying, EndsWithoutReadingTheRestOfAnEntry) {
  const auto cache = std::make_shared<TokenCache>(TokenCacheOptions{.dir = dir_.file("cache")});
  const auto file = open_entry(*cache);
  for (int i = 0; i < 20; ++i) {
    EntryVerifier verifier(cache);
    verifier.use(*file);
  }
}

TEST_F(EntryVerifying, DoesNothingInAForkedProcess) {
  const auto cache = std::make_shared<TokenCache>(TokenCacheOptions{.dir = dir_.file("cache")});
  const auto file = open_entry(*cache);
  auto verifier = std::make_unique<EntryVerifier>(cache);
  verifier->use(*file);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    verifier->use(*file);
    verifier.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace levada
