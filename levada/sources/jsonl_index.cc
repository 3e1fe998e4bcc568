#include "levada/sources/jsonl_index.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/sources/json_string.h"
#include "levada/sources/jsonl_documents.h"
#include "levada/sources/jsonl_line.h"

namespace levada {
namespace {

/// Appends to the arrays of an index as long as there is memory for them.
class IndexMemory {
 public:
  IndexMemory(const File& file, const TokenFileOptions& options, const std::function<MemoryLimits()>& limits)
      : what_("indexing " + file.path()),
        remedy_(options.by_document ? ", or cut documents instead of packing them" : ", or choose a longer sequence"),
        file_bytes_(file.identity().size),
        warn_(options.warn),
        limits_(limits) {}

  /// `offset`: of the item's text in the file.
  template <typename T>
  void append(std::vector<T>& items, T item, std::uint64_t offset) {
    if (items.size() == items.capacity()) expect_room_to_grow(items.size() * sizeof(T), offset);
    items.push_back(item);
  }

 private:
  /// Arrays smaller than this grow without a look at the limits, which takes up to a millisecond.
  static constexpr std::uint64_t small_bytes = std::uint64_t{1} << 20;

  /// For an array of `held` bytes that is full. It doubles, and while it is copied old and new are both held; so does
  /// every later doubling.
  void expect_room_to_grow(std::uint64_t held, std::uint64_t offset) {
    if (held < small_bytes) return;
    const double of_file = static_cast<double>(std::max<std::uint64_t>(offset, 1)) / static_cast<double>(file_bytes_);
    const double whole = static_cast<double>(held) / of_file;
    std::uint64_t peak = 2 * held;
    while (static_cast<double>(peak) < whole) peak *= 2;
    auto limits = limits_();
    const bool can_grow = held <= limits.available;
    limits.available += held;
    if (!can_grow) expect_memory(peak, limits, what_, remedy_);
    if (peak <= limits.available || has_warned_ || !warn_) return;
    has_warned_ = true;
    try {
      expect_memory(peak, limits, what_, remedy_);
    } catch (const InvalidArgument& error) {
      warn_(error.what());
    }
  }

  std::string what_, remedy_;
  std::uint64_t file_bytes_;
  const std::function<void(const std::string&)>& warn_;
  const std::function<MemoryLimits()>& limits_;
  bool has_warned_ = false;
};

/// Counts tokens and notes where the documents begin, if that is asked for, and the cuts fall.
class CutFinder {
 public:
  CutFinder(const TokenFileOptions& options, IndexMemory& memory)
      : memory_(memory), by_document_(options.by_document), stride_(options.stride), next_cut_(options.phase) {}

  /// A document whose raw text, `raw`, begins at `offset`. Throws BadLine, as if there had been no such document.
  void document(std::string_view raw, std::uint64_t offset) {
    const auto before = std::tuple(tokens_, next_cut_, cuts_.size());
    if (by_document_) next_cut_ = tokens_ + stride_;
    try {
      walk(raw, offset);
    } catch (const BadLine&) {
      tokens_ = std::get<0>(before);
      next_cut_ = std::get<1>(before);
      cuts_.resize(std::get<2>(before));
      throw;
    }
    if (!by_document_) return;
    memory_.append(documents_.begins, offset, offset);
    const auto tokens = static_cast<std::uint32_t>(tokens_ - std::get<0>(before));  // A line is shorter.
    memory_.append(documents_.tokens, tokens, offset);
  }

  std::int64_t tokens() const { return tokens_; }
  std::vector<std::uint64_t> take_cuts() { return std::move(cuts_); }
  DocumentTable take_documents() { return std::move(documents_); }

 private:
  void walk(std::string_view raw, std::uint64_t offset) {
    const auto pass = [&](std::size_t length) {
      raw.remove_prefix(length);
      offset += length;
    };
    while (!raw.empty()) {
      const auto stretch = count_stretch(raw, static_cast<std::size_t>(next_cut_ - tokens_));
      tokens_ += static_cast<std::int64_t>(stretch.decoded);
      pass(stretch.raw);
      if (raw.empty()) break;
      const auto piece = next_piece(raw);
      if (piece.kind == StringPiece::plain) token_run(offset, piece.raw, 1, 0);
      else if (piece.kind == StringPiece::escape) token_run(offset, piece.decoded_size, 0, 1);
      else throw BadLine(wrong_escape(raw));
      pass(piece.raw);
    }
    token_run(offset, 1, 0, 0);
  }

  /// `count` tokens, of which the k-th begins at `offset` + k * `offset_step`, k * `skip_step` bytes into an escape.
  void token_run(std::uint64_t offset, std::size_t count, std::uint64_t offset_step, unsigned skip_step) {
    const auto end = tokens_ + static_cast<std::int64_t>(count);
    for (; next_cut_ < end; next_cut_ += stride_) {
      const auto into = static_cast<std::uint64_t>(next_cut_ - tokens_);
      const TextPlace place{offset + into * offset_step, static_cast<unsigned>(into) * skip_step};
      memory_.append(cuts_, place.packed(), place.offset);
    }
    tokens_ = end;
  }

  IndexMemory& memory_;
  bool by_document_;
  std::int64_t stride_, next_cut_, tokens_ = 0;
  std::vector<std::uint64_t> cuts_;
  DocumentTable documents_;
};

void add_range(std::vector<ByteRange>& ranges, const Line& line) {
  if (!ranges.empty() && ranges.back().end == line.begin) ranges.back().end = line.end;
  else ranges.push_back({line.begin, line.end});
}

}  // namespace

FileIndex index_jsonl(const File& file, const TokenFileOptions& options, std::uint64_t line_limit,
                      const std::function<MemoryLimits()>& limits) {
  FileIndex index;
  Digest digest;
  IndexMemory memory(file, options, limits);
  CutFinder cuts(options, memory);
  IndexProgress progress{file.path(), 0, file.identity().size};
  const JsonlVisitor visitor = {
      .on_bytes =
          [&](std::string_view bytes) {
            digest.update(bytes);
            progress.bytes_done += bytes.size();
            if (options.progress) options.progress(progress);
          },
      .on_document = [&](std::string_view raw, std::uint64_t offset) { cuts.document(raw, offset); },
      .on_bad_line = [&](const Line& line) { add_range(index.skipped, line); }};
  const auto counts = visit_jsonl(file, options, visitor, line_limit);
  index.contents = {
      .tokens = cuts.tokens(), .documents = counts.documents, .bad_lines = counts.bad_lines, .digest = digest.hex()};
  index.cuts = cuts.take_cuts();
  index.documents = cuts.take_documents();
  return index;
}

}  // namespace levada
