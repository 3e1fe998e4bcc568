// Stages that pack documents into rows.
#include <fmt/format.h>

#include <deque>
#include <numeric>

#include "levada/base/error.h"
#include "levada/corpus/packing.h"
#include "levada/pipeline/checkpointed_input.h"
#include "levada/pipeline/documents.h"
#include "levada/pipeline/graph_builder.h"

namespace levada::pipeline {
namespace {

/// Its cursor holds the document and the token at which the next row begins.
class CutIterator final : public StageIterator {
 public:
  CutIterator(GraphContextPtr context, int stage, StagePtr input)
      : StageIterator(context, stage, nullptr), source_(context, stage, std::move(input)), reader_(operation<Pack>()) {}

  void conclude() override { source_.conclude(); }

 private:
  struct HeldDocument {
    DocumentPtr document;
    std::int64_t position = 0;
  };

  std::optional<Item> make() override {
    const auto& pack = operation<Pack>();
    pull_documents(pack.sequence + 1);
    const auto positions = std::min(pack.sequence, left_ - 1);
    if (positions < 1 || (positions < pack.sequence && pack.partial == PartialRow::drop)) return std::nullopt;
    auto row = guarded([&] { return context_->traits.dict_of(row_of(positions)); });
    advance(positions < pack.sequence ? left_ : positions);
    return row;
  }

  /// Pulls documents until `tokens` tokens are available, or the input has ended.
  void pull_documents(std::int64_t tokens) {
    while (left_ < tokens) {
      auto item = pulled([this] { return source_.next(); });
      if (!item) break;
      auto document = guarded([&] { return reader_.read(context_->traits.arrays_of(*item)); });
      const auto size = document->size();
      if (held_.empty() && at_ > 0 && size <= at_) break;
      left_ += size;
      if (size > 0) held_.push_back({std::move(document), num_inputs_ - 1});
    }
    if (left_ >= 0) return;
    guarded([] { throw InvalidArgument("the state is of a token that its document does not have"); });
  }

  Arrays row_of(std::int64_t positions) const {
    RowBuilder builder(operation<Pack>(), 1, reader_.form());
    builder.begin_segment(positions);
    auto begin = at_;
    auto missing = positions + 1;
    for (auto held = held_.begin(); missing > 0; ++held) {
      const auto end = std::min(begin + missing, held->document->size());
      builder.add(*held->document, begin, end);
      missing -= end - begin;
      begin = 0;
    }
    return std::move(builder).finish();
  }

  void advance(std::int64_t tokens) {
    left_ -= tokens;
    at_ += tokens;
    while (!held_.empty() && at_ >= held_.front().document->size()) {
      at_ -= held_.front().document->size();
      held_.pop_front();
    }
    source_.keep_from(next_position());
  }

  std::int64_t next_position() const { return held_.empty() ? num_inputs_ : held_.front().position; }

  SavedState saved() const override {
    const auto from = next_position();
    auto point = source_.at(from);
    return {std::move(point.entries), {{"from", from}, {"skip", point.skip}, {"at", at_}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    num_inputs_ = own.count("from");
    source_.restore(before, num_inputs_, own.count("skip"));
    at_ = own.count("at");
    left_ = -at_;
  }
  void release() override {
    held_.clear();
    source_.release();
  }

  CheckpointedInput source_;
  DocumentReader reader_;
  std::deque<HeldDocument> held_;
  std::int64_t at_ = 0;    ///< index of the token in the first document at which the next row begins
  std::int64_t left_ = 0;  ///< tokens available from there on
};

/// A document whose positions from `from` on are not in a row yet.
struct DocumentRest {
  DocumentPtr document;
  std::int64_t position = 0;
  std::int64_t from = 0;
  std::uint8_t rounds = 0;  ///< number of rounds for which it has been held

  std::int64_t positions() const { return document->size() - 1 - from; }
};

/// Works in rounds: fills the buffer, packs its documents, and emits the fuller half of the rows. The documents of the
/// other rows stay for the next round, except in rows with a document that has been held for max_rounds. A round also
/// ends when it has read as many documents as the buffer holds, since documents as long as a row do not stay in the
/// buffer.
class BestFitIterator final : public HoldingIterator<DocumentRest> {
 public:
  BestFitIterator(GraphContextPtr context, int stage, StagePtr input)
      : HoldingIterator(std::move(context), stage, std::move(input)),
        pack_(operation<Pack>()),
        max_documents_(pack_.max_documents.value_or(pack_.default_max_documents())),
        reader_(pack_) {}

 private:
  /// `positions` positions of a document, from `from` on.
  struct Piece {
    DocumentPtr document;
    std::int64_t from = 0, positions = 0;
  };
  using Pieces = std::vector<Piece>;

  std::optional<Item> make_one() override {
    const auto pieces = next_row();
    if (!pieces) return std::nullopt;
    return guarded([&] { return context_->traits.dict_of(row_of(*pieces)); });
  }
  bool skip_one() override { return next_row().has_value(); }

  std::optional<Pieces> next_row() {
    if (rows_.empty()) make_rows();
    if (rows_.empty()) return std::nullopt;
    auto row = std::move(rows_.front());
    rows_.pop_front();
    return row;
  }

  Arrays row_of(const Pieces& pieces) const {
    RowBuilder builder(pack_, max_documents_, reader_.form());
    for (const auto& [document, from, positions] : pieces) {
      builder.begin_segment(positions);
      builder.add(*document, from, from + positions + 1);
    }
    return std::move(builder).finish();
  }

  bool is_last_long() const { return !held_.empty() && held_.back().positions() >= pack_.sequence; }

  /// Makes a row from a part of a long document, or the rows of a round; none at the end.
  void make_rows() {
    for (bool is_all = false; rows_.empty() && !is_all;) {
      is_all = !read_documents();
      if (is_last_long()) cut_last();
      else pack_held(is_all);
    }
  }

  /// Reads the documents of a round, or those up to a long one. Returns false at the end of the input.
  bool read_documents() {
    for (; !is_last_long() && std::ssize(held_) < pack_.buffer && read_ < pack_.buffer; ++read_) {
      auto item = pull_tracked();
      if (!item) return false;
      guarded([&] { add(hold(*std::move(item), num_inputs_ - 1)); });
    }
    return true;
  }

  void add(DocumentRest held) {
    if (held.positions() < 1) return;  // It has no label.
    if (held.positions() > pack_.sequence && pack_.too_long == LongDocument::error) {
      throw InvalidArgument(
          fmt::format("the document has {} tokens, and a row holds {}; raise sequence, or let it be cut",
                      held.document->size(), pack_.sequence + 1));
    }
    held_.push_back(std::move(held));
  }

  void cut_last() {
    auto& last = held_.back();
    rows_.push_back({{last.document, last.from, pack_.sequence}});
    last.from += pack_.sequence;
    if (last.positions() == 0) held_.pop_back();
    else if (last.positions() < pack_.sequence) keep_rest(last);
  }
  /// Releases the memory of the part that is already in rows.
  static void keep_rest(DocumentRest& held) {
    held.document = held.document->copy_from(held.from);
    held.from = 0;
  }

  void pack_held(bool is_all) {
    std::vector<std::int64_t> sizes;
    for (const auto& held : held_) sizes.push_back((held.positions() + pack_.pad_to - 1) / pack_.pad_to * pack_.pad_to);
    const auto packing = pack_best_fit(sizes, pack_.sequence, max_documents_);
    const auto emitted = is_all ? std::vector<bool>(packing.bins, true) : rows_to_emit(packing, sizes);
    constexpr auto none = std::numeric_limits<std::size_t>::max();
    std::vector<std::size_t> row_of(packing.bins, none);  // index in rows_, which is empty
    std::vector<DocumentRest> stay;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      auto& held = held_[i];
      const auto bin = packing.bin_of[i];
      if (!emitted[bin]) {
        ++held.rounds;
        stay.push_back(std::move(held));
        continue;
      }
      if (row_of[bin] == none) {
        row_of[bin] = rows_.size();
        rows_.emplace_back();
      }
      const auto positions = held.positions();
      rows_[row_of[bin]].push_back({std::move(held.document), held.from, positions});
    }
    held_ = std::move(stay);
    read_ = 0;
  }

  /// Returns for each bin whether to emit it.
  std::vector<bool> rows_to_emit(const BinPacking& packing, const std::vector<std::int64_t>& sizes) const {
    constexpr std::uint8_t max_rounds = 8;
    std::vector<bool> emitted(packing.bins);
    std::vector<std::int64_t> filled(packing.bins);
    std::vector<std::size_t> first(packing.bins);
    for (auto i = sizes.size(); i-- > 0;) {
      const auto bin = packing.bin_of[i];
      filled[bin] += sizes[i];
      first[bin] = i;
      if (held_[i].rounds >= max_rounds) emitted[bin] = true;
    }
    std::vector<std::uint32_t> order(packing.bins);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [&](std::uint32_t bin) { return std::pair(-filled[bin], first[bin]); });
    for (std::size_t i = 0; i < (order.size() + 1) / 2; ++i) emitted[order[i]] = true;
    return emitted;
  }

  DocumentRest hold(Item item, std::int64_t position) override {
    return {.document = reader_.read(context_->traits.arrays_of(item)), .position = position};
  }
  std::int64_t capacity() const override { return pack_.buffer; }
  bool can_mark() const override { return rows_.empty(); }

  void save_own(Fields& fields) const override {
    ByteWriter rounds;
    for (const auto& held : held_) rounds.put(held.rounds);
    fields.emplace_back("rounds", std::move(rounds).take());
    fields.emplace_back("cut", is_last_long() ? held_.back().from : 0);
    fields.emplace_back("read", read_);
  }
  void restore_own(const CursorFields& own) override {
    rounds_then_ = own.bytes("rounds");
    cut_then_ = own.count("cut");
    read_ = own.count("read");
    if (cut_then_ % pack_.sequence != 0) own.fail("its sequence differs");
  }
  void finish_restore() override {
    const auto throw_other_documents = [] { throw InvalidArgument("the state is of other documents"); };
    if (rounds_then_.size() != held_.size() || (held_.empty() && cut_then_ > 0)) throw_other_documents();
    for (std::size_t i = 0; i < held_.size(); ++i) {
      auto& held = held_[i];
      held.rounds = static_cast<std::uint8_t>(rounds_then_[i]);
      if (cut_then_ > 0 && i + 1 == held_.size()) {
        held.from = cut_then_;
        if (held.positions() < pack_.sequence) throw_other_documents();
        continue;
      }
      held.from = std::max<std::int64_t>(held.positions(), 0) / pack_.sequence * pack_.sequence;
      if (held.positions() < 1) throw_other_documents();
      if (held.from > 0) keep_rest(held);
    }
  }
  void release() override {
    rows_.clear();
    HoldingIterator::release();
  }

  const Pack& pack_;
  std::int64_t max_documents_;
  DocumentReader reader_;
  std::deque<Pieces> rows_;  ///< to be yielded next
  std::int64_t read_ = 0;    ///< documents read since the last round

  Bytes rounds_then_;  ///< the rounds in a restored state, until finish_restore()
  std::int64_t cut_then_ = 0;
};

}  // namespace

StagePtr make_stage(const Pack& pack, const StagePlace& at) {
  if (pack.method == Packing::cut) return at.make<CutIterator>(at.input());
  return at.make<BestFitIterator>(at.input());
}

}  // namespace levada::pipeline
