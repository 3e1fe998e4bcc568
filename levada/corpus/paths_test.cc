#include "levada/corpus/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "levada/base/error.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Files and folders, named from `dir` on.
std::vector<std::string> expanded(const ScratchDir& dir, const std::vector<std::string>& names) {
  std::vector<std::string> paths, found;
  for (const auto& name : names) paths.push_back(dir.file(name));
  for (const auto& path : expand_paths(paths)) found.push_back(path.substr(dir.path().size() + 1));
  return found;
}

std::string fault_of_file(const ScratchDir& dir, const std::string& name) {
  try {
    expanded(dir, {name});
  } catch (const SourceError& error) {
    return error.what();
  }
  return "no fault";
}

/// What expand_paths() makes of a URL, where these are what is listed.
std::vector<std::string> expand_url(const std::string& url,
                                    const std::map<std::string, std::vector<std::string>>& listed) {
  return expand_paths({url}, {}, {}, [&](const std::string& asked) {
    const auto found = listed.find(asked);
    return found == listed.end() ? std::vector<std::string>() : found->second;
  });
}

/// A folder with some of everything.
class SomeFiles : public ScratchDir {
 public:
  SomeFiles() {
    for (const auto* folder : {"a", "a/b", "a/.hidden", "none"}) std::filesystem::create_directory(file(folder));
    for (const auto* name : {"2.jsonl", "10.jsonl", "B.txt", "a/z.bin", "a/z.idx", "a/b/y.txt", "a/.x.txt",
                             "a/.hidden/x.txt", "a/readme.md", "none/x.csv", "[1].txt"}) {
      write(name, "x");
    }
  }
};

TEST(Paths, LeavesNamesAsTheyAreInTheirOrder) {
  EXPECT_THAT(expand_paths({"b.txt", "a.txt", "no such file.jsonl", "b.txt"}),
              ElementsAre("b.txt", "a.txt", "no such file.jsonl", "b.txt"));
}

TEST(Paths, TakesAPairOfFilesOnceHoweverItsFilesAreNamed) {
  for (const std::string at : {"", "data/", "s3://b/"}) {
    const auto named = [&](std::vector<std::string> names) {
      for (auto& name : names) name = at + name;
      return names;
    };
    EXPECT_EQ(expand_paths(named({"web.idx", "a.txt", "web.bin"})), named({"a.txt", "web.bin"}));
    EXPECT_EQ(expand_paths(named({"b.idx", "web.bin", "web.idx", "b.bin"})), named({"web.bin", "b.bin"}));
    EXPECT_EQ(expand_paths(named({"web.idx", "a.txt", "a.txt.bin", "web.bin", "web.bin"})),
              named({"a.txt", "a.txt.bin", "web.bin", "web.bin"}));
    EXPECT_EQ(expand_paths(named({"web.idx", "b.bin"})), named({"web.idx", "b.bin"}));
  }
  EXPECT_THAT(expand_paths({"data/web", "data/web.bin", "data/web.idx", "web"}), ElementsAre("data/web.bin", "web"));
  EXPECT_THAT(expand_url("s3://b/web*", {{"s3://b/web*", {"s3://b/web.idx", "s3://b/web.bin"}}}),
              ElementsAre("s3://b/web.bin"));
}

TEST(Paths, SortsWhatAPatternMatchesByItsBytes) {
  const SomeFiles dir;
  EXPECT_THAT(expanded(dir, {"*.jsonl"}), ElementsAre("10.jsonl", "2.jsonl"));
  EXPECT_THAT(expanded(dir, {"?.*", "*.jsonl"}), ElementsAre("2.jsonl", "B.txt", "10.jsonl", "2.jsonl"));
  EXPECT_THAT(expanded(dir, {"[1].txt"}), ElementsAre("[1].txt"));
}

TEST(Paths, TwoStarsMatchAnyNumberOfFolders) {
  const SomeFiles dir;
  std::filesystem::create_directory(dir.file("a/b/[1]"));
  dir.write("a/b/[1]/deep.txt", "x");
  dir.write("a/.hidden/y.txt", "x");
  std::filesystem::create_directory_symlink("..", dir.file("a/b/loop"));
  EXPECT_THAT(expanded(dir, {"a/**/*.txt"}), ElementsAre("a/b/[1]/deep.txt", "a/b/y.txt"));
  EXPECT_THAT(expanded(dir, {"**/y.txt"}), ElementsAre("a/b/y.txt"));
  EXPECT_THAT(expanded(dir, {"a/**/b/**/*.txt"}), ElementsAre("a/b/[1]/deep.txt", "a/b/y.txt"));
  EXPECT_THROW(expanded(dir, {"a/**/*.none"}), SourceError);
}

TEST(Paths, TakesAllFilesBelowAFolder) {
  const SomeFiles dir;
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.txt", "a/z.bin"));
  EXPECT_THAT(expanded(dir, {"a/*"}), ElementsAre("a/b/y.txt", "a/readme.md", "a/z.bin"));
}

TEST(Paths, LeavesOutTheEntriesOfTheTokenCacheAloneHoweverItsFolderIsNamed) {
  const SomeFiles dir;
  const auto entry = dir.write("a/b/web.jsonl-0123456789abcdef.bin", "x");
  std::filesystem::create_directory_symlink(dir.file("a/b"), dir.file("a/link"));
  for (const auto* cache : {"a/b", "a/link", "a/../a/b"}) {
    EXPECT_THAT(expand_paths({dir.file("a")}, {}, dir.file(cache)),
                ElementsAre(dir.file("a/b/y.txt"), dir.file("a/z.bin")))
        << cache;
  }
  EXPECT_THAT(expand_paths({dir.file("a")}, {}, dir.file("absent")),
              ElementsAre(entry, dir.file("a/b/y.txt"), dir.file("a/z.bin")));
  EXPECT_THAT(expand_paths({entry}, {}, dir.file("a/b")), ElementsAre(entry));
}

TEST(Paths, ReadsAFolderOnceHoweverManyLinksLeadThere) {
  const SomeFiles dir;
  std::filesystem::create_directory_symlink("b", dir.file("a/a link that comes first"));
  std::filesystem::create_directory_symlink("..", dir.file("a/b/loop"));
  std::filesystem::create_directory_symlink(dir.file("a"), dir.file("a/b/whole"));
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.txt", "a/z.bin"));
}

TEST(Paths, FollowsALinkToAFolderElsewhere) {
  const SomeFiles dir, elsewhere;
  std::filesystem::create_directory_symlink(elsewhere.file("a"), dir.file("a/b/link"));
  std::filesystem::create_directory_symlink(elsewhere.file("a"), dir.file("a/b/another"));
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/another/b/y.txt", "a/b/another/z.bin", "a/b/y.txt", "a/z.bin"));
  std::filesystem::create_directory_symlink("a", dir.file("c"));
  EXPECT_THAT(expanded(dir, {"c"}), ElementsAre("c/b/another/b/y.txt", "c/b/another/z.bin", "c/b/y.txt", "c/z.bin"));
}

TEST(Paths, LeavesOutALinkThatLeadsToItself) {
  const SomeFiles dir;
  std::filesystem::create_directory_symlink("self", dir.file("a/self"));
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.txt", "a/z.bin"));
  std::filesystem::create_symlink("self.txt", dir.file("a/self.txt"));
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.txt", "a/self.txt", "a/z.bin"));  // Opening it names it.
}

TEST(Paths, NamesWhatNothingIsFoundFor) {
  const SomeFiles dir;
  EXPECT_EQ(fault_of_file(dir, "*.csv"), "no file matches " + dir.file("*.csv"));
  EXPECT_EQ(fault_of_file(dir, "none"),
            dir.file("none") +
                " holds no file of data: .jsonl, .txt (compressed too: .gz, .zst), .json.gz, .json.zst or .bin");
}

TEST(Paths, AUrlOfAFileIsItselfAndIsNotListed) {
  for (const std::string url : {"s3://b/a.jsonl", "gs://b/a.txt.zst", "s3://b/a.bin", "s3://b/a.idx"}) {
    EXPECT_THAT(expand_paths({url}), ElementsAre(url));
  }
  EXPECT_THAT(expand_paths({"file:///d/a.jsonl"}), ElementsAre("/d/a.jsonl"));
}

TEST(Paths, AUrlOfAFolderIsItsFilesOfDataSortedWithoutHiddenOnes) {
  const std::vector<std::string> below = {"s3://b/d/z.txt",      "s3://b/d/a.bin",  "s3://b/d/a.idx",
                                          "s3://b/d/.git/c.txt", "s3://b/d/.e.txt", "s3://b/d/f.csv"};
  EXPECT_THAT(expand_url("s3://b/d", {{"s3://b/d", below}}), ElementsAre("s3://b/d/a.bin", "s3://b/d/z.txt"));
  EXPECT_THAT(expand_url("s3://b/d/", {{"s3://b/d/", below}}), ElementsAre("s3://b/d/a.bin", "s3://b/d/z.txt"));
  EXPECT_THAT(expand_url("s3://b/.d", {{"s3://b/.d", {"s3://b/.d/a.txt"}}}), ElementsAre("s3://b/.d/a.txt"));
  EXPECT_THAT(expand_url("s3://b/prefix", {}), ElementsAre("s3://b/prefix"));
  EXPECT_THROW(expand_url("s3://b/d", {{"s3://b/d", {"s3://b/d/a.csv"}}}), SourceError);
}

TEST(Paths, APatternInAUrlIsWhatItMatchesWithTheFilesOfFolders) {
  EXPECT_THAT(expand_url("s3://b/*", {{"s3://b/*", {"s3://b/f/", "s3://b/b.idx", "s3://b/b.bin", "s3://b/a.txt"}},
                                      {"s3://b/f/", {"s3://b/f/c.txt"}}}),
              ElementsAre("s3://b/a.txt", "s3://b/b.bin", "s3://b/f/c.txt"));
  EXPECT_THROW(expand_url("s3://b/?.txt", {}), SourceError);
  EXPECT_THAT(expand_url("https://h/a?b=c.txt", {}), ElementsAre("https://h/a?b=c.txt"));
}

}  // namespace
}  // namespace levada
