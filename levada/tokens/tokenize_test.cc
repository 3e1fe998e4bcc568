#include "levada/tokens/tokenize.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <latch>
#include <random>

#include "levada/base/error.h"
#include "levada/base/fault_testing.h"
#include "levada/sources/megatron_testing.h"
#include "levada/sources/scratch_dir_testing.h"
#include "levada/tokens/tokenizer_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

/// Yields these pieces, or the same one endlessly.
class Pieces final : public TextReader {
 public:
  explicit Pieces(std::vector<Texts> pieces) : pieces_(std::move(pieces)) {}
  static Pieces endless() {
    Pieces pieces({});
    pieces.is_endless_ = true;
    return pieces;
  }

  bool read(Texts& texts) override {
    if (num_read_ == fail_at) throw SourceError("the reader has failed");
    ++num_read_;
    texts.clear();
    if (is_endless_) {
      texts.add(std::string(10'000, 'x'));
      return true;
    }
    if (num_read_ > pieces_.size()) return false;
    texts = pieces_[num_read_ - 1];
    return true;
  }
  std::string place() const override { return fmt::format("a.jsonl, from line {} on", num_read_); }
  std::uint64_t stored_bytes() const override { return num_read_; }
  const BadLines& bad_lines() const override { return bad_lines_; }

  std::size_t fail_at = SIZE_MAX;

 private:
  std::vector<Texts> pieces_;
  std::size_t num_read_ = 0;
  bool is_endless_ = false;
  const BadLines bad_lines_ = {};
};

std::vector<Texts> some_pieces(std::size_t count) {
  std::mt19937 random(1);
  std::vector<Texts> pieces(count);
  for (auto& piece : pieces) {
    for (auto texts = random() % 20; texts > 0; --texts) piece.add(std::string(random() % 300, char('a' + texts)));
  }
  return pieces;
}

TEST(Tokenize, OutputDoesNotDependOnTheNumberOfThreads) {
  const ScratchDir dir;
  const auto pieces = some_pieces(500);
  for (const int threads : {1, 4}) {
    Pieces reader(pieces);
    MegatronWriter writer(dir.file(std::to_string(threads)), {.dtype = dtypes::uint16});
    int pieces_done = 0;
    WorkTeam team(threads - 1);
    tokenize(reader, *byte_tokenizer(), writer,
             {.end_of_document = 256, .team = &team, .progress = [&] { ++pieces_done; }});
    writer.finish();
    EXPECT_EQ(pieces_done, 500);
  }
  EXPECT_EQ(content(dir.file("4.bin")), content(dir.file("1.bin")));
  EXPECT_EQ(content(dir.file("4.idx")), content(dir.file("1.idx")));
}

TEST(Tokenize, AnEmptyTextBecomesADocumentWithoutSequences) {
  const ScratchDir dir;
  Texts texts;
  for (const auto* text : {"ab", "", "c"}) texts.add(text);
  Pieces reader({texts});
  MegatronWriter writer(dir.file("a"), {.dtype = dtypes::uint16});
  tokenize(reader, *byte_tokenizer(), writer, {.end_of_document = 256});
  writer.finish();
  EXPECT_EQ(content(dir.file("a.idx")), raw_index(8, 2, {3, 2}, {0, 1, 1, 2}).bytes());
  EXPECT_EQ(content(dir.file("a.bin")), raw_bin<std::uint16_t>({'a', 'b', 256, 'c', 256}));
}

TEST(Tokenize, NamesAPieceThatCannotBeEncoded) {
  const ScratchDir dir;
  const HookedTokenizer tokenizer([&](const Texts& texts) {
    if (texts[0] == "bad") throw SourceError("it is bad");
  });
  Texts good, bad;
  good.add("good");
  bad.add("bad");
  Pieces reader({good, good, bad, good});
  MegatronWriter writer(dir.file("a"), {.dtype = dtypes::uint16});
  EXPECT_THAT(fault_of([&] { tokenize(reader, tokenizer, writer, {}); }),
              HasSubstr("a.jsonl, from line 3 on: it is bad;"));
}

TEST(Tokenize, EncodesConcurrently) {
  const ScratchDir dir;
  std::latch all(4);  // Passed only when four run concurrently.
  const HookedTokenizer tokenizer([&](const Texts&) { all.arrive_and_wait(); });
  Texts text;
  text.add("a");
  Pieces reader({text, text, text, text});
  MegatronWriter writer(dir.file("a"), {.dtype = dtypes::uint16});
  WorkTeam team(3);
  tokenize(reader, tokenizer, writer, {.team = &team});
  EXPECT_EQ(writer.documents(), 4);
}

/// Encodes a piece as one text, whatever it contains.
class WrongTokenizer final : public Tokenizer {
 public:
  const std::string& name() const override { return name_; }
  const std::string& digest() const override { return name_; }
  std::int64_t vocabulary_size() const override { return 1; }
  std::optional<std::int64_t> id_of(std::string_view /*token*/) const override { return {}; }
  std::optional<std::int64_t> end_of_document() const override { return {}; }
  void encode(const Texts& /*texts*/, TokenIds& tokens) const override {
    tokens.ids = {0};
    tokens.ends = {1, 1};
  }

 private:
  std::string name_ = "wrong.model";
};

TEST(Tokenize, ForwardsErrorsOfReaderTokenizerWriterAndCaller) {
  const ScratchDir dir;
  std::atomic<int> num_encoded = 0;
  const HookedTokenizer failing([&](const Texts&) {
    if (++num_encoded == 50) throw SourceError("the tokenizer has failed");
  });
  const auto full = [](int, const void*, std::size_t) -> ssize_t {
    errno = ENOSPC;
    return -1;
  };
  const auto fault = [&](const Tokenizer& tokenizer, MegatronWriterOptions to, TokenizeOptions options,
                         std::size_t fail_at = SIZE_MAX) {
    auto reader = Pieces::endless();
    reader.fail_at = fail_at;
    auto said = fault_of([&] {
      MegatronWriter writer(dir.file("a"), std::move(to));
      tokenize(reader, tokenizer, writer, options);
    });
    EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
    return said;
  };
  for (const int threads : {1, 4}) {
    num_encoded = 0;
    const auto bytes = byte_tokenizer();
    WorkTeam team(threads - 1);
    const TokenizeOptions options{.end_of_document = 256, .team = &team};
    EXPECT_EQ(fault(*bytes, {.dtype = dtypes::uint16}, options, 70), "SourceError: the reader has failed");
    EXPECT_THAT(
        fault(failing, {.dtype = dtypes::uint16}, options),
        MatchesRegex("SourceError: a.jsonl, from line [0-9]+ on: the tokenizer has failed; fix the text, leave it "
                     "out, or choose another tokenizer"));
    EXPECT_THAT(fault(*bytes, {.dtype = dtypes::uint16, .write = full}, options), HasSubstr("the disk is full"));
    EXPECT_EQ(fault(*bytes, {.dtype = dtypes::uint8}, options),
              "InvalidArgument: token 256 does not fit in uint8, which holds 0 to 255: choose a wider dtype");
    EXPECT_THAT(fault(WrongTokenizer(), {.dtype = dtypes::uint16}, options),
                HasSubstr("on: wrong.model has encoded 1 texts as 2; "));
    auto stopping = options;
    stopping.progress = [] { throw InvalidArgument("enough"); };
    EXPECT_EQ(fault(*bytes, {.dtype = dtypes::uint16}, stopping), "InvalidArgument: enough");
  }
}

TEST(Tokenize, UsesMegatronsTokenWidth) {
  EXPECT_EQ(token_dtype(257), dtypes::uint16);
  EXPECT_EQ(token_dtype(65499), dtypes::uint16);
  EXPECT_EQ(token_dtype(65500), dtypes::int32);
}

}  // namespace
}  // namespace levada
