#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "levada/base/full_disk_testing.h"
#include "levada/base/refusal_testing.h"
#include "levada/pipeline/graph_testing.h"
#include "levada/pipeline/item_file.h"
#include "levada/pipeline/open_graph_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada::pipeline::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A pipeline whose first stage counts its items.
class CacheTest : public ::testing::Test {
 protected:
  Graph counted(std::int64_t size = 10) {
    const auto count = mapped([this](std::int64_t i) {
      ++made_;
      return 2 * i;
    });
    return Graph::source(range(0, size)).then(count);
  }
  Graph cached(std::int64_t size = 10) { return counted(size).then(Cache{.folder = folder(), .key = "1"}); }
  std::string folder() const { return scratch_.file("cache"); }
  std::string part(int index = 0, int count = 1) const {
    return folder() + "/part-" + std::to_string(index) + "-of-" + std::to_string(count) + ".items";
  }
  static void damage(const std::string& path, std::streamoff offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.put('\x5a');
  }

  ScratchDir scratch_;
  int made_ = 0;
};

TEST_F(CacheTest, RunsThePrecedingStagesOnce) {
  const auto expected = numbers_of(counted());
  made_ = 0;
  for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(numbers_of(cached()), expected);
  EXPECT_EQ(made_, 10);
}

TEST_F(CacheTest, IsReadByARepeatInTheSameRun) {
  EXPECT_EQ(numbers_of(cached().then(Repeat{3})).size(), 30u);
  EXPECT_EQ(made_, 10);
}

TEST_F(CacheTest, KeepsTheItemsThatALaterStageSkips) {
  for (int pass = 0; pass < 2; ++pass) EXPECT_THAT(numbers_of(cached().then(Skip{8})), ::testing::ElementsAre(16, 18));
  EXPECT_EQ(made_, 10);
}

TEST_F(CacheTest, KeepsTensorsAndContainers) {
  std::vector<Tree> trees;
  for (std::int64_t i = 0; i < 500; ++i) {
    trees.push_back(Tree::dict({{"ids", Tensor::of<std::int64_t>({3}, {i, i + 1, i + 2})},
                                {"wide", Tensor::zeros(dtypes::float32, {i % 7, 1000})},
                                {"meta", Tree::tuple({Tree(None{}), Tree("text"), Tree(0.5)})}}));
  }
  const auto graph = Graph::source(pipeline::trees(trees)).then(Cache{.folder = folder()});
  EXPECT_EQ(items_of(graph), trees);
  Opened again(graph);
  auto items = again.items();
  EXPECT_EQ(items, trees);
  auto ids = items[499].tensor("ids");
  EXPECT_TRUE(ids.is_writable());
  EXPECT_EQ(again.counts()[0].items, 0);
}

TEST_F(CacheTest, DiscardsAnIncompletePass) {
  EXPECT_EQ(numbers_of(cached().then(Take{5})).size(), 5u);
  EXPECT_FALSE(std::filesystem::exists(part()));
  EXPECT_TRUE(std::filesystem::is_empty(folder()));
}

TEST_F(CacheTest, IsCompleteOnceAllItemsWereYielded) {
  const std::vector<std::function<Graph()>> passes = {
      [this] { return cached().then(Take{10}); },
      [this] { return cached().then(Prefetch{3}).then(Shuffle{.buffer = 4}).then(Take{10}); },
      [this] {
        return Graph::join(Zip{}, {first_numbers(10), cached()});
      },
      [this] {
        return Graph::join(Zip{}, {cached(), first_numbers(10)}).then(Take{10});
      },
      [this] {
        return Graph::join(Interleave{}, {first_numbers(10), cached()});
      },
      [this] { return cached().then(Repeat{}).then(Take{10}); },
  };
  for (std::size_t i = 0; i < passes.size(); ++i) {
    SCOPED_TRACE(i);
    std::filesystem::remove_all(folder());
    items_of(passes[i]());
    EXPECT_TRUE(std::filesystem::exists(part()));
  }
}

TEST_F(CacheTest, ResumesFromAStateOfAWritingPass) {
  const auto expected = numbers_of(cached());
  std::filesystem::remove_all(folder());
  Opened writing(cached());
  writing.items(4);
  const auto cursor = writing.iterator().save();
  Opened resumed(cached());
  resumed.iterator().restore(cursor);
  EXPECT_EQ(resumed.numbers(), std::vector(expected.begin() + 4, expected.end()));
  EXPECT_FALSE(std::filesystem::exists(part())) << "a pass that begins in the middle is incomplete";
  writing.items();
  Opened reading(cached());
  reading.iterator().restore(cursor);
  EXPECT_EQ(reading.numbers(), std::vector(expected.begin() + 4, expected.end()));
}

TEST_F(CacheTest, ResumesFromAStateOfAReadingPassWithoutTheFile) {
  const auto expected = numbers_of(cached());
  Opened reading(cached());
  reading.items(7);
  const auto cursor = reading.iterator().save();
  std::filesystem::remove_all(folder());
  for (int again = 0; again < 2; ++again) {
    Opened resumed(cached());
    resumed.iterator().restore(cursor);
    EXPECT_EQ(resumed.iterator().save(), cursor);
    EXPECT_EQ(resumed.numbers(), std::vector(expected.begin() + 7, expected.end()));
  }
}

TEST_F(CacheTest, SeeksInTheFile) {
  const auto expected = numbers_of(cached(10'000));
  for (const std::int64_t behind : {0, 1, 4095, 4096, 9999, 10'000, 10'001}) {
    Opened opened(cached(10'000));
    const auto there = std::min<std::int64_t>(behind, 10'000);
    EXPECT_EQ(opened.iterator().skip(behind), there);
    EXPECT_EQ(opened.numbers(), std::vector(expected.begin() + there, expected.end()));
  }
}

TEST_F(CacheTest, HasAFileForEachPart) {
  const auto graph = Graph::source(range(0, 10)).then(Shard{}).then(Cache{.folder = folder()});
  for (int pass = 0; pass < 2; ++pass) {
    for (int rank = 0; rank < 2; ++rank) {
      Opened opened(graph, {.rank = rank, .ranks = 2});
      EXPECT_EQ(opened.numbers(), numbers_of(Graph::source(range(rank, 10, 2))));
    }
  }
  EXPECT_TRUE(std::filesystem::exists(part(0, 2)));
  EXPECT_TRUE(std::filesystem::exists(part(1, 2)));
}

TEST_F(CacheTest, OnlyOneOfSeveralPassesWrites) {
  Opened first(cached()), second(cached());
  first.items(3);
  EXPECT_EQ(second.numbers().size(), 10u);
  EXPECT_FALSE(std::filesystem::exists(part()));
  EXPECT_EQ(first.numbers().size(), 7u);
  EXPECT_TRUE(std::filesystem::exists(part()));
}

TEST_F(CacheTest, RejectsTheItemsOfAnotherPipeline) {
  numbers_of(cached());
  EXPECT_THAT(refusal([&] { Opened(cached(11)); }), HasSubstr("has the items of another pipeline"));
  EXPECT_THAT(refusal([&] { Opened(counted().then(Cache{.folder = folder(), .key = "2"})); }), HasSubstr("key \"1\""));
}

TEST_F(CacheTest, DetectsDamage) {
  numbers_of(cached());
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(part()));
  for (std::int64_t offset = 0; offset < size; offset += 7) {
    const auto kept = scratch_.file("kept");
    std::filesystem::copy_file(part(), kept, std::filesystem::copy_options::overwrite_existing);
    damage(part(), offset);
    std::optional<std::vector<std::int64_t>> numbers;
    try {
      numbers = numbers_of(cached());
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("part-0-of-1.items"));
    }
    if (numbers) {
      EXPECT_EQ(numbers->size(), 10u) << "at " << offset;
    }
    std::filesystem::rename(kept, part());
  }
  std::filesystem::resize_file(part(), static_cast<std::uintmax_t>(size) - 1);
  EXPECT_THROW(Opened{cached()}, SourceError);
}

TEST_F(CacheTest, FailsIfTheFolderCannotBeCreated) {
  scratch_.write("cache", "a file");
  const auto failure = failure_of([&] { numbers_of(cached()); });
  EXPECT_EQ(failure.stage, "cache");
  EXPECT_THAT(failure.message, HasSubstr("part-0-of-1.items"));
}

TEST_F(CacheTest, RejectsFilesOfOtherUsersAndLinks) {
  const auto expected = numbers_of(cached());
  if (::chown(part().c_str(), 12345, 12345) == 0) {  // Only root can do that.
    EXPECT_THAT(refusal<SourceError>([&] { Opened{cached()}; }),
                StartsWith(part() + " is a link, another user's file"));
    ASSERT_EQ(::chown(part().c_str(), ::geteuid(), ::getegid()), 0);
    EXPECT_EQ(numbers_of(cached()), expected);
  }
  std::filesystem::rename(part(), scratch_.file("elsewhere"));
  std::filesystem::create_symlink(scratch_.file("elsewhere"), part());
  EXPECT_THAT(refusal<SourceError>([&] { Opened{cached()}; }), StartsWith(part() + " is a link, another user's file"));
}

TEST_F(CacheTest, IsPrivateWithAnyUmask) {
  const auto before = ::umask(0);
  numbers_of(cached());
  ::umask(before);
  for (const auto& [path, mode] : {std::pair(folder(), 0700U), {part(), 0600U}}) {
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, mode) << path;
  }
}

TEST_F(CacheTest, RejectsAFolderInWhichOthersCanReplaceFiles) {
  const auto expected = numbers_of(cached());
  ASSERT_EQ(::chmod(folder().c_str(), 0775), 0);
  EXPECT_THAT(refusal<SourceError>([&] { Opened{cached()}; }),
              StartsWith("the cache of items " + folder() + " can be written to by other users (mode 0775)"));
  ASSERT_EQ(::chmod(folder().c_str(), 0700), 0);
  ASSERT_EQ(::chmod(part().c_str(), 0660), 0);
  EXPECT_THAT(refusal<SourceError>([&] { Opened{cached()}; }), HasSubstr("others may write to"));
  ASSERT_EQ(::chmod(part().c_str(), 0600), 0);
  EXPECT_EQ(numbers_of(cached()), expected);
}

TEST_F(CacheTest, LeavesNoFileIfTheDiskIsFull) {
  const std::string text(2'000, 'x');
  const auto graph =
      Graph::source(pipeline::trees(std::vector<Tree>(2'000, Tree(text)))).then(Cache{.folder = folder()});
  {
    const FullDisk full(1 << 20);
    const auto failure = failure_of([&] { items_of(graph); });
    EXPECT_EQ(failure.stage, "cache");
    EXPECT_THAT(failure.message, AllOf(HasSubstr("cannot write " + part()), HasSubstr("File too large")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder()));
  EXPECT_EQ(items_of(graph).size(), 2'000);
  EXPECT_TRUE(std::filesystem::exists(part()));
}

TEST_F(CacheTest, IsRewrittenIfItsWriterWasKilled) {
  const auto expected = numbers_of(cached(100'000));
  std::filesystem::remove_all(folder());
  const pid_t writer = ::fork();
  if (writer == 0) {
    Opened opened(cached(100'000));
    opened.items(90'000);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(part()));
  EXPECT_FALSE(std::filesystem::is_empty(folder())) << "the writer was killed before it wrote";
  made_ = 0;
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(numbers_of(cached(100'000)), expected);
  EXPECT_EQ(made_, 100'000);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder()), {}), 1);
}

TEST_F(CacheTest, RejectsStagesThatWouldRunOnlyInTheFirstPass) {
  const Cache cache{.folder = folder()};
  const auto source = Graph::source(range(0, 10));
  EXPECT_THAT(refusal([&] { source.then(Shuffle{}).then(cache); }), HasSubstr("\"shuffle\" before it would run"));
  EXPECT_THAT(refusal([&] { source.then(Dispatch{}).then(cache); }), HasSubstr("\"dispatch\" before it"));
  EXPECT_THAT(refusal([&] { source.then(FullSync{}).then(cache); }), HasSubstr("\"full_sync\" before it"));
  EXPECT_THAT(refusal([&] {
                Graph::join(Interleave{.weights = {1, 2}}, {source, Graph::source(range(0, 5))}).then(cache);
              }),
              HasSubstr("\"interleave\" before it"));
  EXPECT_THAT(refusal([&] { source.then(Cache{}); }), HasSubstr("it has no folder"));
  const auto branches = source.fork(2);
  EXPECT_THAT(refusal([&] {
                Graph::join(Zip{}, {branches[0].then(cache), branches[1]});
              }),
              HasSubstr("items before it are also used elsewhere"));
}

}  // namespace
}  // namespace levada::pipeline::testing
