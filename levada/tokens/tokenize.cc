#include "levada/tokens/tokenize.h"

#include <fmt/format.h>

#include <condition_variable>
#include <exception>
#include <mutex>

#include "levada/base/error.h"

namespace levada {
namespace {

/// Threads that read pieces of text in turn, encode them concurrently, and write them in the order of the text.
class ParallelTokenizer {
 public:
  ParallelTokenizer(TextReader& reader, const Tokenizer& tokenizer, MegatronWriter& writer,
                    const TokenizeOptions& options)
      : reader_(reader), tokenizer_(tokenizer), writer_(writer), options_(options) {}

  void run() {
    if (options_.team != nullptr) options_.team->run([this] { work(); });
    else work();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Piece {
    std::uint64_t number = 0;
    std::string place;
    Texts texts;
  };

  void work() noexcept {
    try {
      Piece piece;
      TokenIds tokens;
      while (read(piece)) {
        encode(piece, tokens);
        write(piece.number, tokens);
      }
    } catch (...) {
      const std::lock_guard lock(writing_);
      if (!error_) error_ = std::current_exception();
      written_.notify_all();
    }
  }

  /// Reads the next piece. Returns false at the end.
  bool read(Piece& piece) {
    const std::lock_guard lock(reading_);
    if (has_ended_) return false;
    has_ended_ = true;  // Also if reading fails.
    if (!reader_.read(piece.texts)) return false;
    has_ended_ = false;
    piece.number = num_read_++;
    piece.place = reader_.place();
    return true;
  }

  void encode(const Piece& piece, TokenIds& tokens) const try {
    const auto& texts = piece.texts;
    tokenizer_.encode(texts, tokens);
    if (tokens.ends.size() != texts.size() || (texts.size() > 0 && tokens.ends.back() != tokens.ids.size())) {
      throw SourceError(
          fmt::format("{} has encoded {} texts as {}", tokenizer_.name(), texts.size(), tokens.ends.size()));
    }
  } catch (const SourceError& error) {
    throw SourceError(
        fmt::format("{}: {}; fix the text, leave it out, or choose another tokenizer", piece.place, error.what()));
  }

  void write(std::uint64_t number, const TokenIds& tokens) {
    std::unique_lock lock(writing_);
    written_.wait(lock, [&] { return num_written_ == number || error_; });
    if (error_) {
      const std::lock_guard reading(reading_);
      has_ended_ = true;
      return;
    }
    append(tokens);
    if (options_.progress) options_.progress();
    ++num_written_;
    written_.notify_all();
  }

  void append(const TokenIds& tokens) {
    std::size_t begin = 0;
    for (const auto end : tokens.ends) {
      if (end > begin) {
        writer_.append(std::span(tokens.ids).subspan(begin, end - begin));
        if (options_.end_of_document) writer_.append(std::span(&*options_.end_of_document, 1));
      }
      writer_.end_document();
      begin = end;
    }
  }

  TextReader& reader_;
  const Tokenizer& tokenizer_;
  MegatronWriter& writer_;
  const TokenizeOptions& options_;

  std::mutex reading_;
  std::uint64_t num_read_ = 0;
  bool has_ended_ = false;

  std::mutex writing_;
  std::condition_variable written_;
  std::uint64_t num_written_ = 0;
  std::exception_ptr error_;
};

}  // namespace

DType token_dtype(std::int64_t vocabulary_size) {
  return vocabulary_size < 65500 ? dtypes::uint16 : dtypes::int32;
}

void tokenize(TextReader& reader, const Tokenizer& tokenizer, MegatronWriter& writer, const TokenizeOptions& options) {
  ParallelTokenizer(reader, tokenizer, writer, options).run();
}

}  // namespace levada
