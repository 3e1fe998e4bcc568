// The stage at which all ranks stop together. It makes a bunch of items ahead: while its caller works on one bunch, the
// ranks report to each other the size of the next.
#include <fmt/format.h>

#include <deque>

#include "levada/base/error.h"
#include "levada/pipeline/checkpointed_input.h"
#include "levada/pipeline/epoch_end_barrier.h"
#include "levada/pipeline/graph_builder.h"
#include "levada/pipeline/message_sizer.h"

namespace levada::pipeline {
namespace {

class FullSyncIterator final : public StageIterator {
 public:
  FullSyncIterator(const GraphContextPtr& context, int stage, const std::function<StagePtr()>& open_input)
      : StageIterator(context, stage, nullptr), barrier_(context->all_ranks, options(*context, stage)) {
    try {
      source_.emplace(context, stage, open_input());
    } catch (const std::exception&) {
      thrown_ = std::current_exception();  // report() sends it to the other ranks, which then fail as well
    }
  }

 private:
  static EpochEndBarrierOptions options(GraphContext& context, int stage) {
    return {.stage = context.stage(stage).name,
            .pipeline = context.name_among_ranks,
            .timeout = context.timeout,
            .poll = [&context] { context.attend(Clock::now()); }};
  }

  std::optional<Item> make() override {
    if (!looked_) look();
    const auto all = await();
    if (all.kind == Lookahead::Kind::ended) return std::nullopt;
    if (all.kind == Lookahead::Kind::failed) {
      if (all.failed_rank == barrier_.rank()) std::rethrow_exception(thrown_);
      throw StageFailed(*all.failure);
    }
    if (num_inputs_ == bunch_ && !is_over_) look();
    std::optional<Item> item(std::move(ahead_.front()));
    ahead_.pop_front();
    ++num_inputs_;
    if (source_) source_->keep_from(num_inputs_);
    return item;
  }

  /// Makes the next bunch of items, and reports it to the other ranks.
  void look() {
    looked_ = true;
    bunch_ = made();
    Lookahead mine;
    bool at_once = false;
    try {
      if (!thrown_) is_over_ = waited([&] { return !make_bunch(); });
    } catch (const std::exception& error) {
      thrown_ = std::current_exception();
      // An exception of the caller's poll, such as Ctrl-C, does not wait for the items made ahead.
      at_once = dynamic_cast<const Error*>(&error) == nullptr;
    }
    mine.until = made();
    if (thrown_) {
      is_over_ = true;
      mine.kind = Lookahead::Kind::failed;
      mine.failure = failure_of(thrown_);
      mine.failure->process = fmt::format("rank {}, {}", barrier_.rank(),
                                          mine.failure->process.empty() ? context_->process : mine.failure->process);
    } else if (is_over_) {
      mine.kind = Lookahead::Kind::ended;
    }
    barrier_.report(mine);
    if (at_once) std::rethrow_exception(thrown_);
  }

  /// Makes only as many items as can be made without delaying other ranks. Returns false at the end.
  bool make_bunch() {
    const auto begin = Clock::now();
    sizer_.begin(begin);
    for (bool full = false; !full;) {
      auto item = source_->next();
      if (!item) return false;
      ahead_.push_back(*std::move(item));
      full = sizer_.add(Clock::now) || Clock::now() - begin >= MessageSizer::message_time;
    }
    sizer_.sent(Clock::now(), 0);
    return true;
  }
  std::int64_t made() const { return num_inputs_ + static_cast<std::int64_t>(ahead_.size()); }

  EndTree::Outcome await() {
    try {
      return waited([&] { return barrier_.await(num_inputs_); });
    } catch (const std::exception&) {
      if (thrown_ && ahead_.empty()) std::rethrow_exception(thrown_);  // the cause on this rank
      throw;
    }
  }

  SavedState saved() const override {
    if (!source_) std::rethrow_exception(thrown_);
    auto point = source_->at(num_inputs_);
    return {std::move(point.entries), {{"skip", point.skip}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    if (source_) source_->restore(before, num_inputs_, own.count("skip"));
  }
  void release() override {
    if (source_) source_->release();
  }

  /// Maximum items per bunch: two bunches are kept, whatever their size, and a message costs as much as about ten
  /// items.
  static constexpr std::int64_t max_items = 16;

  EpochEndBarrier barrier_;
  std::optional<CheckpointedInput> source_;  ///< empty if it could not be opened
  MessageSizer sizer_{max_items};
  bool looked_ = false;
  std::deque<Item> ahead_;
  std::int64_t bunch_ = 0;     ///< start of the last bunch
  bool is_over_ = false;       ///< no items follow those made ahead
  std::exception_ptr thrown_;  ///< to be thrown after the items made ahead
};

}  // namespace

StagePtr make_stage(const FullSync&, const StagePlace& at) {
  const auto& all_ranks = at.builder.context()->all_ranks;
  if (all_ranks == nullptr || all_ranks->info().size == 1) return make_identity(at, at.input());
  return at.make<FullSyncIterator>([&] { return at.input(); });
}

}  // namespace levada::pipeline
