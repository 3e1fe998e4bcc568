#include "levada/corpus/paths.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "levada/base/error.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// Returns expanded files, with paths relative to `dir`.
std::vector<std::string> expanded(const ScratchDir& dir, const std::vector<std::string>& names) {
  std::vector<std::string> paths, found;
  for (const auto& name : names) paths.push_back(dir.file(name));
  for (const auto& path : expand_paths(paths).files) found.push_back(path.substr(dir.path().size() + 1));
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

/// Returns expand_paths() of a URL if storage lists these files.
std::vector<std::string> expand_url(const std::string& url,
                                    const std::map<std::string, std::vector<std::string>>& listed) {
  return expand_paths({url}, {}, {},
                      [&](const std::string& asked) {
                        const auto found = listed.find(asked);
                        return found == listed.end() ? std::vector<std::string>() : found->second;
                      })
      .files;
}

/// A folder with various kinds of files.
class SomeFiles : public ScratchDir {
 public:
  SomeFiles() {
    for (const auto* folder : {"a", "a/b", "a/.hidden", "none"}) std::filesystem::create_directory(file(folder));
    for (const auto* name : {"2.jsonl", "10.jsonl", "B.txt", "a/z.bin", "a/z.idx", "a/b/y.jsonl", "a/.x.txt",
                             "a/.hidden/x.txt", "a/readme.md", "none/x.csv", "[1].txt"}) {
      write(name, "x");
    }
  }
};

TEST(Paths, KeepsNamesInOrder) {
  EXPECT_THAT(expand_paths({"b.txt", "a.jsonl", "no such file.jsonl"}).files,
              ElementsAre("b.txt", "a.jsonl", "no such file.jsonl"));
}

TEST(Paths, CountsAPairOnceIfBothFilesAreNamed) {
  for (const std::string at : {"", "data/", "s3://b/"}) {
    const auto named = [&](std::vector<std::string> names) {
      for (auto& name : names) name = at + name;
      return names;
    };
    EXPECT_EQ(expand_paths(named({"web.idx", "a.txt", "web.bin"})).files, named({"a.txt", "web.bin"}));
    EXPECT_EQ(expand_paths(named({"b.idx", "web.bin", "web.idx", "b.bin"})).files, named({"web.bin", "b.bin"}));
    EXPECT_EQ(expand_paths(named({"web.idx", "a.txt", "a.txt.bin", "web.bin"})).files,
              named({"a.txt", "a.txt.bin", "web.bin"}));
    EXPECT_EQ(expand_paths(named({"web.idx", "b.bin"})).files, named({"web.idx", "b.bin"}));
  }
  EXPECT_THAT(expand_paths({"data/web", "data/web.bin", "data/web.idx", "web"}).files,
              ElementsAre("data/web.bin", "web"));
  EXPECT_THAT(expand_url("s3://b/web*", {{"s3://b/web*", {"s3://b/web.idx", "s3://b/web.bin"}}}),
              ElementsAre("s3://b/web.bin"));
}

TEST(Paths, SortsMatchesOfAPatternByBytes) {
  const SomeFiles dir;
  EXPECT_THAT(expanded(dir, {"*.jsonl"}), ElementsAre("10.jsonl", "2.jsonl"));
  EXPECT_THAT(expanded(dir, {"?.*", "1*.jsonl"}), ElementsAre("2.jsonl", "B.txt", "10.jsonl"));
  EXPECT_THAT(expanded(dir, {"[1].txt"}), ElementsAre("[1].txt"));
}

TEST(Paths, TwoStarsMatchAnyNumberOfFolders) {
  const SomeFiles dir;
  std::filesystem::create_directory(dir.file("a/b/[1]"));
  dir.write("a/b/[1]/deep.jsonl", "x");
  dir.write("a/.hidden/y.jsonl", "x");
  std::filesystem::create_directory_symlink("..", dir.file("a/b/loop"));
  EXPECT_THAT(expanded(dir, {"a/**/*.jsonl"}), ElementsAre("a/b/[1]/deep.jsonl", "a/b/y.jsonl"));
  EXPECT_THAT(expanded(dir, {"**/y.jsonl"}), ElementsAre("a/b/y.jsonl"));
  EXPECT_THAT(expanded(dir, {"a/**/b/**/*.jsonl"}), ElementsAre("a/b/[1]/deep.jsonl", "a/b/y.jsonl"));
  EXPECT_THROW(expanded(dir, {"a/**/*.none"}), SourceError);
  std::filesystem::create_directories(dir.file("a/_temporary/0"));
  dir.write("a/_temporary/0/part.jsonl", "x");
  EXPECT_THAT(expanded(dir, {"a/**/*.jsonl"}), ElementsAre("a/b/[1]/deep.jsonl", "a/b/y.jsonl"));
  EXPECT_THAT(expanded(dir, {"a/_temporary/**/*.jsonl"}), ElementsAre("a/_temporary/0/part.jsonl"));
}

TEST(Paths, TwoStarsFollowLinksToFoldersAsAFolderDoes) {
  const SomeFiles dir, elsewhere;
  elsewhere.write("a/_part.jsonl", "x");
  std::filesystem::create_directory_symlink(elsewhere.file("a"), dir.file("a/link"));
  std::filesystem::create_directory_symlink(elsewhere.file("a"), dir.file("a/second link"));
  std::filesystem::create_directory_symlink("b", dir.file("a/a link that comes first"));
  EXPECT_THAT(expanded(dir, {"a/**/y.jsonl"}), ElementsAre("a/b/y.jsonl", "a/link/b/y.jsonl"));
  EXPECT_THAT(expanded(dir, {"a/**/*.bin"}), ElementsAre("a/link/z.bin", "a/z.bin"));
  // Also where a pattern starts at several folders, and where it has several pairs of stars.
  std::filesystem::create_directories(dir.file("c/a"));
  std::filesystem::create_directories(dir.file("c/b/b"));
  dir.write("c/a/x.jsonl", "");
  dir.write("c/b/b/x.jsonl", "");
  std::filesystem::create_directory_symlink("../b", dir.file("c/a/link"));
  EXPECT_THAT(expanded(dir, {"c/*/**/x.jsonl"}), ElementsAre("c/a/x.jsonl", "c/b/b/x.jsonl"));
  EXPECT_THAT(expanded(dir, {"c/**/b/**/x.jsonl"}), ElementsAre("c/b/b/x.jsonl"));
}

TEST(Paths, FindsAllFilesBelowAFolder) {
  const SomeFiles dir;
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.jsonl", "a/z.bin"));
  EXPECT_THAT(expanded(dir, {"a/*"}), ElementsAre("a/b/y.jsonl", "a/readme.md", "a/z.bin"));
}

TEST(Paths, SkipsOnlyTokenCacheEntriesByAnyNameOfTheFolder) {
  const SomeFiles dir;
  const auto entry = dir.write("a/b/web.jsonl-0123456789abcdef.bin", "x");
  std::filesystem::create_directory_symlink(dir.file("a/b"), dir.file("a/link"));
  for (const auto* cache : {"a/b", "a/link", "a/../a/b"}) {
    EXPECT_THAT(expand_paths({dir.file("a")}, {}, dir.file(cache)).files,
                ElementsAre(dir.file("a/b/y.jsonl"), dir.file("a/z.bin")))
        << cache;
  }
  EXPECT_THAT(expand_paths({dir.file("a")}, {}, dir.file("absent")).files,
              ElementsAre(entry, dir.file("a/b/y.jsonl"), dir.file("a/z.bin")));
  EXPECT_THAT(expand_paths({entry}, {}, dir.file("a/b")).files, ElementsAre(entry));
}

TEST(Paths, SkipsEntriesOfOtherTokenCaches) {
  const SomeFiles dir;
  for (const auto* extension : {".bin", ".idx", ".verified"}) {
    dir.write(fmt::format("a/b/text-0123456789abcdef{}", extension), "x");
  }
  const auto files = [&](const std::string& meta) {
    dir.write("a/b/text-0123456789abcdef.json", meta);
    return expand_paths({dir.file("a")}).files.size();
  };
  EXPECT_EQ(files(R"({"version": 1, "checksum": "", "key": "0123456789abcdef0000"})"), 2);
  EXPECT_THAT(expand_paths({dir.file("a")}).left_out, ElementsAre(Pair(".md", 1)));
  for (const auto* other : {R"({"checksum": "", "key": "1123456789abcdef"})", R"({"key": 1})", "{", ""}) {
    EXPECT_EQ(files(other), 3) << other;
  }
}

TEST(Paths, ReadsAFolderOnceDespiteLinksToIt) {
  const SomeFiles dir;
  std::filesystem::create_directory_symlink("b", dir.file("a/a link that comes first"));
  std::filesystem::create_directory_symlink("..", dir.file("a/b/loop"));
  std::filesystem::create_directory_symlink(dir.file("a"), dir.file("a/b/whole"));
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.jsonl", "a/z.bin"));
}

TEST(Paths, FollowsALinkToAFolderElsewhere) {
  const SomeFiles dir, elsewhere;
  std::filesystem::create_directory_symlink(elsewhere.file("a"), dir.file("a/b/link"));
  std::filesystem::create_directory_symlink(elsewhere.file("a"), dir.file("a/b/another"));
  EXPECT_THAT(expanded(dir, {"a"}),
              ElementsAre("a/b/another/b/y.jsonl", "a/b/another/z.bin", "a/b/y.jsonl", "a/z.bin"));
  std::filesystem::create_directory_symlink("a", dir.file("c"));
  EXPECT_THAT(expanded(dir, {"c"}),
              ElementsAre("c/b/another/b/y.jsonl", "c/b/another/z.bin", "c/b/y.jsonl", "c/z.bin"));
}

TEST(Paths, SkipsALinkToItself) {
  const SomeFiles dir;
  std::filesystem::create_directory_symlink("self", dir.file("a/self"));
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.jsonl", "a/z.bin"));
  std::filesystem::create_symlink("self.jsonl", dir.file("a/self.jsonl"));
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.jsonl", "a/self.jsonl", "a/z.bin"));  // opening it names it
}

TEST(Paths, NamesThePathWithoutData) {
  const SomeFiles dir;
  EXPECT_EQ(fault_of_file(dir, "*.csv"), "no file matches " + dir.file("*.csv"));
  EXPECT_EQ(fault_of_file(dir, "none"),
            dir.file("none") +
                " holds no data files: .jsonl, .ndjson, .json of lines, .txt (compressed too: .gz, .zst) or .bin");
}

TEST(Paths, AUrlOfAFileIsKeptWithoutListing) {
  for (const std::string url : {"s3://b/a.jsonl", "gs://b/a.txt.zst", "s3://b/a.bin", "s3://b/a.idx"}) {
    EXPECT_THAT(expand_paths({url}).files, ElementsAre(url));
  }
  EXPECT_THAT(expand_paths({"file:///d/a.jsonl"}).files, ElementsAre("/d/a.jsonl"));
}

TEST(Paths, AUrlOfAFolderExpandsToItsSortedVisibleDataFiles) {
  const std::vector<std::string> below = {"s3://b/d/z.jsonl",    "s3://b/d/a.bin",  "s3://b/d/a.idx",
                                          "s3://b/d/.git/c.txt", "s3://b/d/.e.txt", "s3://b/d/f.csv"};
  EXPECT_THAT(expand_url("s3://b/d", {{"s3://b/d", below}}), ElementsAre("s3://b/d/a.bin", "s3://b/d/z.jsonl"));
  EXPECT_THAT(expand_url("s3://b/d/", {{"s3://b/d/", below}}), ElementsAre("s3://b/d/a.bin", "s3://b/d/z.jsonl"));
  EXPECT_THAT(expand_url("s3://b/.d", {{"s3://b/.d", {"s3://b/.d/a.txt"}}}), ElementsAre("s3://b/.d/a.txt"));
  EXPECT_THAT(expand_url("s3://b/prefix", {}), ElementsAre("s3://b/prefix"));
  EXPECT_THROW(expand_url("s3://b/d", {{"s3://b/d", {"s3://b/d/a.csv"}}}), SourceError);
}

TEST(Paths, APatternInAUrlExpandsToItsMatchesAndTheirFiles) {
  EXPECT_THAT(expand_url("s3://b/*", {{"s3://b/*", {"s3://b/f/", "s3://b/b.idx", "s3://b/b.bin", "s3://b/a.txt"}},
                                      {"s3://b/f/", {"s3://b/f/c.txt"}}}),
              ElementsAre("s3://b/a.txt", "s3://b/b.bin", "s3://b/f/c.txt"));
  EXPECT_THROW(expand_url("s3://b/?.txt", {}), SourceError);
}

TEST(Paths, AWebAddressIsAFileByItsExtensionBeforeTheQueryOrAtItsEnd) {
  const auto list = [](const std::string& asked) -> std::vector<std::string> { throw SourceError(asked); };
  for (const std::string url : {"https://h/a.jsonl?X-Sig=*b", "https://h/a.bin?sig=b", "https://h/a.idx?sig=b",
                                "https://h/a.txt.gz#part", "https://h/a?b=c.txt"}) {
    EXPECT_THAT(expand_paths({url}, {}, {}, list).files, ElementsAre(url));
  }
}

TEST(Paths, SkipsUnfinishedOutputsAndMetadataOfPrograms) {
  const SomeFiles dir;
  for (const auto* folder : {"a/_temporary", "a/_delta_log"}) std::filesystem::create_directory(dir.file(folder));
  for (const auto* name : {"a/_temporary/part.jsonl", "a/_delta_log/1.jsonl", "a/_metadata.jsonl", "a/_SUCCESS"}) {
    dir.write(name, "x");
  }
  const auto found = expand_paths({dir.file("a")});
  EXPECT_THAT(found.files, ElementsAre(dir.file("a/b/y.jsonl"), dir.file("a/z.bin")));
  EXPECT_THAT(found.left_out, ElementsAre(Pair(".md", 1)));
  EXPECT_THAT(expanded(dir, {"a/_temporary"}), ElementsAre("a/_temporary/part.jsonl"));
  EXPECT_THAT(expanded(dir, {"a/_temp*"}), ElementsAre("a/_temporary/part.jsonl"));
  EXPECT_THAT(expanded(dir, {"a/[!r]*"}), ElementsAre("a/_SUCCESS", "a/_metadata.jsonl", "a/b/y.jsonl", "a/z.bin"));
  EXPECT_THAT(expand_url("s3://b/*", {{"s3://b/*", {"s3://b/_t/", "s3://b/_a.txt", "s3://b/a.txt"}}}),
              ElementsAre("s3://b/_a.txt", "s3://b/a.txt"));
  const std::vector<std::string> below = {"s3://b/d/_temporary/0/p.jsonl", "s3://b/d/_x.jsonl", "s3://b/d/e.jsonl"};
  EXPECT_THAT(expand_url("s3://b/d", {{"s3://b/d", below}}), ElementsAre("s3://b/d/e.jsonl"));
}

TEST(Paths, CountsOtherFilesByExtension) {
  const SomeFiles dir;
  for (const auto* name : {"a/b/1.csv", "a/b/2.csv", "a/b/LICENSE", "a/b/UPPER.JSONL", "a/b/z.jsonl.bz2"}) {
    dir.write(name, "x");
  }
  EXPECT_THAT(expand_paths({dir.file("a"), dir.file("2.jsonl")}).left_out,
              ElementsAre(Pair("", 1), Pair(".JSONL", 1), Pair(".bz2", 1), Pair(".csv", 2), Pair(".md", 1)));
}

TEST(Paths, RejectsAFolderThatMixesTextAndOtherData) {
  const SomeFiles dir;
  dir.write("a/LICENSE.txt", "x");
  EXPECT_EQ(fault_of_file(dir, "a"),
            fmt::format("{0} holds both text and other data, such as {0}/LICENSE.txt and {0}/b/y.jsonl: select the "
                        "files to read by patterns, such as '{0}/**/*.jsonl'",
                        dir.file("a")));
  EXPECT_THAT(expanded(dir, {"a/**/*.jsonl", "a/LICENSE.txt"}), ElementsAre("a/b/y.jsonl", "a/LICENSE.txt"));
  EXPECT_THROW(expand_url("s3://b/d", {{"s3://b/d", {"s3://b/d/LICENSE.txt", "s3://b/d/e.bin"}}}), SourceError);
}

TEST(Paths, RejectsAFileThatWouldBeReadTwice) {
  const SomeFiles dir;
  std::filesystem::create_symlink("2.jsonl", dir.file("latest.jsonl"));
  std::filesystem::create_hard_link(dir.file("10.jsonl"), dir.file("same.jsonl"));
  const auto fault = [&](const std::vector<std::string>& names) -> std::string {
    try {
      expanded(dir, names);
    } catch (const SourceError& error) {
      return error.what();
    }
    return "no fault";
  };
  EXPECT_THAT(fault({"2*.jsonl", "2.jsonl"}), HasSubstr("2.jsonl appears twice; name it once, or"));
  EXPECT_THAT(fault({"2.jsonl", "./2.jsonl"}), HasSubstr("are one file"));
  EXPECT_THAT(fault({"latest.jsonl", "2.jsonl"}), HasSubstr("are one file"));
  EXPECT_THAT(fault({"10.jsonl", "same.jsonl"}), HasSubstr("are one file"));
  EXPECT_THAT(fault({"a/z", "a/z.bin"}), "no fault") << "a pair by its prefix and by its file";
  EXPECT_THAT(fault({"a/z", "a/../a/z.bin"}), HasSubstr("are one file"));
  EXPECT_THROW(expand_paths({"s3://b/a.jsonl", "s3://b/a.jsonl"}), SourceError);
}

TEST(Paths, RejectsAFolderThatHoldsAFileInTwoForms) {
  for (const auto* twin : {"a/b/y.jsonl.gz", "a/b/y.bin", "a/b/y.ndjson.zst"}) {
    const SomeFiles dir;
    dir.write(twin, "x");
    EXPECT_THAT(fault_of_file(dir, "a"), HasSubstr("have one name, so they seem to hold the same documents twice"))
        << twin;
    EXPECT_THAT(expanded(dir, {"a/**/*.jsonl"}), ElementsAre("a/b/y.jsonl")) << twin;
  }
  const SomeFiles dir;
  dir.write("a/y.jsonl", "x");
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.jsonl", "a/y.jsonl", "a/z.bin")) << "in another folder";
  EXPECT_THROW(expand_url("s3://b/d", {{"s3://b/d", {"s3://b/d/e.jsonl", "s3://b/d/e.jsonl.gz"}}}), SourceError);
}

TEST(Paths, RejectsANameOfBothAFolderAndAPair) {
  const SomeFiles dir;
  dir.write("a.bin", "x");
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.jsonl", "a/z.bin")) << "a .bin without .idx is no data set";
  dir.write("a.idx", "x");
  EXPECT_EQ(
      fault_of_file(dir, "a"),
      fmt::format("{0} is a folder, and also the prefix of {0}.bin and {0}.idx: name {0}/ or {0}.bin", dir.file("a")));
  EXPECT_THAT(expanded(dir, {"a/"}), ElementsAre("a/b/y.jsonl", "a/z.bin"));
  EXPECT_THAT(expanded(dir, {"a.bin"}), ElementsAre("a.bin"));
}

TEST(Paths, APrefixInAFolderWithBracketsIsNoPattern) {
  const ScratchDir dir;
  std::filesystem::create_directory(dir.file("[v2]"));
  dir.write("[v2]/web.bin", "x");
  EXPECT_THAT(expanded(dir, {"[v2]/web"}), ElementsAre("[v2]/web"));
}

TEST(Paths, ThePathInAFolderTakesTheFoldersNameAsItIs) {
  const ScratchDir dir;
  for (const auto* name : {"[v2]", "v", "2", "a*", "ab", "c\\d", "cd"}) {
    std::filesystem::create_directory(dir.file(name));
    dir.write(fmt::format("{}/x.jsonl", name), "x");
    dir.write(fmt::format("{}/web.bin", name), "x");
  }
  dir.write("v/only.jsonl", "x");
  for (const std::string folder : {"[v2]", "a*", "c\\d"}) {
    for (const auto* path : {"*.jsonl", "x.json?", "**/*.jsonl", "x.jsonl"}) {
      EXPECT_THAT(expand_paths({path_in_folder(dir.file(folder), path)}).files,
                  ElementsAre(dir.file(folder + "/x.jsonl")))
          << folder << " " << path;
    }
    EXPECT_EQ(path_in_folder(dir.file(folder), "web"), dir.file(folder + "/web"));
  }
  EXPECT_THROW(expand_paths({path_in_folder(dir.file("[v2]"), "only.jsonl")}), SourceError);
  EXPECT_EQ(path_in_folder("/[v2]", "/d/*.jsonl"), "/d/*.jsonl");
  EXPECT_EQ(path_in_folder("s3://b/[v2]", "*.jsonl"), "s3://b/[[]v2]/*.jsonl");
  EXPECT_EQ(path_in_folder("s3://b/[v2]", "a.jsonl"), "s3://b/[v2]/a.jsonl");
}

TEST(Paths, JsonFilesOfLinesMayBeginWithAByteOrderMarkOrBlankLines) {
  const SomeFiles dir;
  dir.write("a/mark.json", "\xef\xbb\xbf{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  dir.write("a/blank.json", "\n \r\n{\"text\": \"a\"}\n\n{\"text\": \"b\"}");
  EXPECT_THAT(expanded(dir, {"a"}), ElementsAre("a/b/y.jsonl", "a/blank.json", "a/mark.json", "a/z.bin"));
}

TEST(Paths, ReadsOnlyJsonFilesOfLines) {
  const SomeFiles dir;
  dir.write("a/lines.json", "{\"text\": \"a\"}\r\n{\"text\": \"b\"}\n");
  dir.write("a/mix.json", "{\n  \"sources\": []\n}\n");
  dir.write("a/state.json", "{\"epoch\": 1}\n");
  dir.write("a/list.json", "[\n{\"text\": \"a\"},\n{\"text\": \"b\"}]\n");
  dir.write("a/more.ndjson", "x");
  const auto found = expand_paths({dir.file("a")});
  EXPECT_THAT(found.files, ElementsAre(dir.file("a/b/y.jsonl"), dir.file("a/lines.json"), dir.file("a/more.ndjson"),
                                       dir.file("a/z.bin")));
  EXPECT_THAT(found.left_out, ElementsAre(Pair(".json", 3), Pair(".md", 1)));
}

}  // namespace
}  // namespace levada
