#include "levada/sources/conversion.h"

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/sources/data_kind.h"
#include "levada/sources/document_reader.h"
#include "levada/sources/hand_over.h"
#include "levada/sources/megatron_writer.h"

namespace levada {
namespace {

// Large against the cost of waking a thread; a few of them still lie in the caches that both threads share.
constexpr std::size_t block_bytes = std::size_t{512} << 10;
constexpr std::size_t most_blocks = 4;

/// Text of documents end to end, and where in it they end.
struct DocumentBlock {
  std::string text;
  std::vector<std::size_t> ends;
};

/// Ends the reading of a file whose blocks nobody takes any more.
struct NobodyTakes {};

DType dtype_for(const ConversionOptions& options) {
  const auto dtype = options.dtype.value_or(options.append_eod ? dtypes::uint16 : dtypes::uint8);
  if (dtype == dtypes::int8) throw InvalidArgument("bytes do not fit in int8: choose uint8");
  if (options.append_eod && dtype == dtypes::uint8) {
    throw InvalidArgument(
        fmt::format("what ends a document is token {}, which does not fit in uint8: choose uint16, or do not append it",
                    end_of_document));
  }
  return dtype;
}

/// What the reading thread does: opens the files, and hands over their documents in blocks.
class BlockReader {
 public:
  BlockReader(const std::vector<std::string>& paths, const ConversionOptions& options) : options_(options) {
    for (const auto& path : paths) {
      const auto kind = data_kind(path);
      if (kind != DataKind::jsonl && kind != DataKind::text) {
        throw InvalidArgument(fmt::format("{} is no text that can be converted: .jsonl and .txt can", path));
      }
    }
    for (const auto& path : paths) {
      files_.push_back(options.open(path));
      bytes_in_all += files_.back()->identity().size;
    }
  }

  /// In a thread of its own. Throws nothing: errors go the way of the blocks.
  void run(HandOver<DocumentBlock>& to) noexcept {
    try {
      read_all(to);
      to.close();
    } catch (const NobodyTakes&) {
    } catch (...) {
      to.close(std::current_exception());
    }
  }

  std::uint64_t bytes_in_all = 0;
  std::atomic<std::uint64_t> bytes_done = 0;
  std::int64_t bad_lines = 0;

 private:
  void read_all(HandOver<DocumentBlock>& to) {
    TokenFileOptions options = {.text_field = options_.text_field, .skip_bad = options_.skip_bad};
    const DocumentVisitor visitor = {.on_text = [&](std::string_view text) { add(text, to); },
                                     .on_end = [&] { block_.ends.push_back(block_.text.size()); }};
    std::uint64_t before = 0;
    for (const auto& file : files_) {
      options.progress = [&](const IndexProgress& progress) { bytes_done = before + progress.bytes_done; };
      bad_lines += read_documents(*file, options, visitor).bad_lines;
      before += file->identity().size;
    }
    to.give(std::move(block_));
  }

  void add(std::string_view text, HandOver<DocumentBlock>& to) {
    if (block_.text.size() + text.size() > block_bytes && !block_.text.empty()) {
      if (!to.give(std::exchange(block_, {}))) throw NobodyTakes();
      block_.text.reserve(block_bytes);
    }
    block_.text += text;
  }

  const ConversionOptions& options_;
  std::vector<std::unique_ptr<File>> files_;
  DocumentBlock block_;
};

struct EndOfTaking {
  HandOver<DocumentBlock>& blocks;
  ~EndOfTaking() { blocks.give_up(); }
};

void write_block(const DocumentBlock& block, const ConversionOptions& options, MegatronWriter& writer) {
  const std::string_view text = block.text;
  std::size_t at = 0;
  for (const auto end : block.ends) {
    writer.append_bytes(text.substr(at, end - at));
    if (options.append_eod) writer.append(std::span(&end_of_document, 1));
    writer.end_sequence();
    writer.end_document();
    at = end;
  }
  writer.append_bytes(text.substr(at));
}

}  // namespace

Conversion convert_to_megatron(const std::vector<std::string>& from, const std::string& to,
                               const ConversionOptions& options) {
  const auto dtype = dtype_for(options);
  BlockReader reader(from, options);
  MegatronWriter writer(to, {.dtype = dtype, .overwrite = options.overwrite, .write = options.write});
  HandOver<DocumentBlock> blocks(most_blocks);
  {
    ThreadGroup reading;
    reading.start("reading ahead", [&] { reader.run(blocks); });
    const EndOfTaking end{blocks};  // Before the thread is waited for.
    while (const auto block = blocks.take()) {
      write_block(*block, options, writer);
      if (options.progress) options.progress(reader.bytes_done, reader.bytes_in_all);
    }
  }
  writer.finish();
  return {.paths = writer.paths(),
          .dtype = dtype,
          .documents = writer.documents(),
          .sequences = writer.sequences(),
          .tokens = writer.tokens(),
          .bad_lines = reader.bad_lines,
          .bytes_read = reader.bytes_in_all,
          .bytes_written = writer.bytes()};
}

}  // namespace levada
