#include "levada/tokens/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <tuple>

#include "levada/base/fault_testing.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"
#include "levada/tokens/compression_testing.h"
#include "levada/tokens/tokenizer_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

std::vector<std::int64_t> bytes_of(const std::string& text) {
  std::vector<std::int64_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

TEST(Conversion, WritesDocumentsInFileOrder) {
  const ScratchDir dir;
  const std::string lines = "{\"text\":\"a\\u00e9\"}\n{\"text\":\"\"}\n{\"text\":\"bc\"}\n";
  const auto open = open_from({{"a.jsonl.gz", gzip(lines)}, {"b.txt", "plain"}, {"c.txt.zst", zstd("d")}});
  const std::vector<std::string> from = {"a.jsonl.gz", "b.txt", "c.txt.zst"};
  const auto plain = convert_to_megatron(from, dir.file("a"), {.open = open});
  EXPECT_EQ(tokens_in(dir.file("a")), bytes_of("a\xc3\xa9"
                                               "bcplaind"));
  EXPECT_EQ(plain.dtype, dtypes::uint16);
  EXPECT_EQ(plain.documents, 5);
  EXPECT_EQ(plain.sequences, 4);
  EXPECT_EQ(plain.tokens, 11);
  EXPECT_EQ(plain.bytes_read, gzip(lines).size() + 5 + zstd("d").size());
  EXPECT_EQ(plain.bytes_written,
            std::filesystem::file_size(plain.paths.bin) + std::filesystem::file_size(plain.paths.idx));
  for (const auto dtype : {dtypes::int16, dtypes::int32, dtypes::int64}) {
    const auto ended = convert_to_megatron(
        from, dir.file("a"), {.dtype = dtype, .end_of_document = 0, .threads = 3, .overwrite = true, .open = open});
    EXPECT_EQ(ended.dtype, dtype);
    EXPECT_EQ(tokens_in(dir.file("a")), bytes_of(std::string("a\xc3\xa9\0bc\0plain\0d\0", 15)));
  }
}

TEST(Conversion, UsesThePermissionsThatAllInputsShare) {
  const ScratchDir dir;
  const auto a = dir.write("a.txt", "a"), b = dir.write("b.txt", "b");
  const auto before = ::umask(022);
  for (const auto& [mode_a, mode_b, mode] : {std::tuple(0600U, 0644U, 0600U),
                                             {0644U, 0640U, 0640U},
                                             {0666U, 0666U, 0644U},
                                             {0444U, 0604U, 0604U},
                                             {0400U, 0755U, 0600U}}) {
    ASSERT_EQ(::chmod(a.c_str(), mode_a) + ::chmod(b.c_str(), mode_b), 0);
    const auto made = convert_to_megatron({a, b}, dir.file("out"), {.overwrite = true});
    for (const auto& path : {made.paths.bin, made.paths.idx}) {
      struct stat status {};
      ASSERT_EQ(::stat(path.c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 07777U, mode) << path;
    }
  }
  ::umask(before);
}

TEST(Conversion, GrantsNoAccessToAnotherGroupThanTheInputs) {
  const ScratchDir dir;
  const auto a = dir.write("a.txt", "a");
  if (::chown(a.c_str(), ::geteuid(), 5000) != 0) GTEST_SKIP() << "only root has every group";  // skipped without: root
  ASSERT_EQ(::chmod(a.c_str(), 0640), 0);
  const auto mode_of_new = [&] {
    struct stat status {};
    const auto made = convert_to_megatron({a}, dir.file("out"), {.overwrite = true});
    EXPECT_EQ(::stat(made.paths.bin.c_str(), &status), 0);
    return status.st_mode & 07777U;
  };
  EXPECT_EQ(mode_of_new(), 0600U);
  ASSERT_EQ(::chown(dir.path().c_str(), ::geteuid(), 5000) + ::chmod(dir.path().c_str(), 02755), 0);
  EXPECT_EQ(mode_of_new(), 0640U);
}

TEST(Conversion, UsesTheGivenTokenizer) {
  const ScratchDir dir;
  const auto tokenizer = std::make_shared<HookedTokenizer>();
  convert_to_megatron({"a.txt"}, dir.file("a"), {.tokenizer = tokenizer, .open = open_from({{"a.txt", "text"}})});
  EXPECT_EQ(tokenizer->num_texts, 1);
}

TEST(Conversion, RejectsUnsuitableDtypesAndInputs) {
  const ScratchDir dir;
  const auto open = open_from({{"a.jsonl", "{\"text\":\"\xc3\xa9\"}"}, {"a.csv", "x"}});
  const auto convert = [&](const std::string& from, ConvertOptions options) {
    options.open = open;
    return fault_of([&] { convert_to_megatron({from}, dir.file("out"), options); });
  };
  EXPECT_EQ(
      convert("a.jsonl", {.dtype = dtypes::uint8, .end_of_document = 256}),
      "InvalidArgument: the tokens of bytes go up to 256, and uint8 holds 0 to 255: choose a wider dtype (--dtype "
      "int32), or auto");
  EXPECT_THAT(convert("a.jsonl", {.dtype = dtypes::int8}), HasSubstr("go up to 255, and int8 holds 0 to 127"));
  EXPECT_THAT(convert("a.csv", {}), HasSubstr("InvalidArgument: a.csv is not a text that can be converted"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Conversion, StoresBytesAsUint8WithoutEndOfDocument) {
  const ScratchDir dir;
  const auto open = open_from({{"a.txt", "\xc3\xa9"}});
  const auto made = convert_to_megatron({"a.txt"}, dir.file("a"), {.dtype = dtypes::uint8, .open = open});
  EXPECT_EQ(made.bytes_written, 2 + std::filesystem::file_size(made.paths.idx));
}

/// Reads no more of its file than the size, as a table's reader does.
class OneDocument final : public TextReader {
 public:
  explicit OneDocument(std::shared_ptr<const File> file) : file_(std::move(file)) {}
  bool read(Texts& texts) override {
    texts.clear();
    if (std::exchange(is_read_, true)) return false;
    std::string text(file_->identity().size, '\0');
    read_fully(*file_, 0, text);
    texts.add(text);
    return true;
  }
  std::string place() const override { return file_->path(); }
  std::uint64_t stored_bytes() const override { return 0; }
  const BadLines& bad_lines() const override { return bad_lines_; }

 private:
  std::shared_ptr<const File> file_;
  bool is_read_ = false;
  const BadLines bad_lines_ = {};
};

TEST(Conversion, DetectsATableThatChangesDuringConversion) {
  const ScratchDir dir;
  const auto path = dir.write("a.table", "before");
  ConvertOptions options;
  options.formats = {{".table", [](std::shared_ptr<const File> file, const TextOptions&) {
                        return std::make_unique<OneDocument>(std::move(file));
                      }}};
  options.tokenizer =
      std::make_shared<HookedTokenizer>([&](const Texts&) { dir.write("a.table", "longer than before"); });
  EXPECT_THAT(fault_of([&] { convert_to_megatron({path}, dir.file("out"), options); }),
              HasSubstr("SourceError: " + path));
  EXPECT_FALSE(std::filesystem::exists(dir.file("out.idx")));
}

TEST(Conversion, LeavesNoFileAfterABadText) {
  const ScratchDir dir;
  const auto open = open_from({{"a.jsonl", "{\"text\":\"good\"}\n{\"text\":\"\\x\"}\n{\"text\":\"good\"}\n"},
                               {"none.jsonl", "\n \n"},
                               {"empty.txt", ""},
                               {"latin.txt", "caf\xe9"}});
  const auto convert = [&](const std::string& from) {
    return fault_of([&] { convert_to_megatron({from}, dir.file("out"), {.open = open}); });
  };
  EXPECT_THAT(convert("a.jsonl"), HasSubstr("SourceError: a.jsonl:2: the line cannot be used"));
  EXPECT_THAT(convert("none.jsonl"), HasSubstr("none.jsonl holds no documents"));
  EXPECT_THAT(convert("empty.txt"), HasSubstr("empty.txt is empty"));
  EXPECT_THAT(convert("latin.txt"), HasSubstr("latin.txt is not UTF-8 at byte 3"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  const auto done = convert_to_megatron({"a.jsonl"}, dir.file("out"), {.text = {.skip_bad = true}, .open = open});
  EXPECT_THAT(done.bad_lines.first, ::testing::ElementsAre("a.jsonl:2"));
  EXPECT_EQ(done.documents, 2);
}

TEST(Conversion, StopsReadingOnAFullDiskOrACallersException) {
  const ScratchDir dir;
  std::string lines;
  while (lines.size() < std::size_t{8} << 20) lines += "{\"text\":\"" + std::string(1000, 'x') + "\"}\n";
  std::uint64_t furthest = 0;
  const auto open = [&](const std::string& path) {
    auto file = std::make_unique<MemoryFile>(path, lines);
    file->before_read = [&](std::uint64_t offset) { furthest = std::max(furthest, offset); };
    return file;
  };
  const auto full = [](int, const void*, std::size_t) -> ssize_t {
    errno = ENOSPC;
    return -1;
  };
  EXPECT_THAT(fault_of([&] { convert_to_megatron({"a.jsonl"}, dir.file("out"), {.open = open, .write = full}); }),
              HasSubstr("the disk is full"));
  EXPECT_LT(furthest, lines.size() / 2);
  struct Enough {};
  const auto stop = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GT(done, 0);
    EXPECT_EQ(total, lines.size());
    throw Enough();
  };
  furthest = 0;
  EXPECT_THROW(convert_to_megatron({"a.jsonl"}, dir.file("out"), {.progress = stop, .open = open}), Enough);
  EXPECT_LT(furthest, lines.size() / 2);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace levada
