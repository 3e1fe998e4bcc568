// The stage at which all ranks stop together. It looks one item ahead: while its caller works on an item, the ranks
// tell each other whether there is a next one.
#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/pipeline/end_agreement.h"
#include "levada/pipeline/streams.h"
#include "levada/pipeline/tracked_input.h"

namespace levada::pipeline {
namespace {

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const StageFailed& failed) {
    return failed.failure();
  } catch (const Error& e) {
    return {.kind = e.kind(), .message = e.what()};
  } catch (const std::exception& e) {
    return {.message = e.what()};
  }
}

class FullSyncStream final : public StageStream {
 public:
  FullSyncStream(SettingPtr setting, int stage, const std::function<StagePtr()>& open_input, const SeatPtr& seat)
      : StageStream(setting, stage, nullptr), agreement_(setting->all_ranks, options(*setting, stage, seat)) {
    try {
      source_.emplace(setting, stage, open_input());
    } catch (const std::exception&) {
      thrown_ = std::current_exception();  // an error on one is an error on all, so the others are to hear of it
    }
  }

 private:
  static EndAgreementOptions options(const Setting& setting, int stage, const SeatPtr& seat) {
    const auto poll = [seat, poll = setting.poll] {
      if (seat->lane()->must_stop()) throw Stopped{};
      if (poll) poll();
    };
    return {.stage = setting.stage(stage).name, .timeout = setting.timeout, .poll = poll};
  }

  std::optional<Item> make() override {
    if (!looked_) look();
    const Foresight all = await();
    if (all.kind == Foresight::Kind::ended) return std::nullopt;
    if (all.kind == Foresight::Kind::failed) {
      if (thrown_ && agreement_.failed_rank() == agreement_.rank()) std::rethrow_exception(thrown_);
      throw StageFailed(*all.failure);
    }
    auto item = std::exchange(ahead_, std::nullopt);
    ++given_;
    source_->keep_from(given_);
    look();
    return item;
  }

  /// Makes the next item, and tells the others of it.
  void look() {
    looked_ = true;
    try {
      if (!thrown_) ahead_ = waited([&] { return source_->next(); });
    } catch (const std::exception&) {
      thrown_ = std::current_exception();
    }
    Foresight mine{.item = given_};
    if (thrown_) {
      mine.kind = Foresight::Kind::failed;
      mine.failure = failure_of(thrown_);
      mine.failure->process = fmt::format("rank {}, {}", agreement_.rank(),
                                          mine.failure->process.empty() ? setting_->process : mine.failure->process);
    } else if (!ahead_) {
      mine.kind = Foresight::Kind::ended;
    }
    agreement_.say(mine);
  }

  Foresight await() {
    try {
      return waited([&] { return agreement_.await(); });
    } catch (const std::exception&) {
      if (thrown_) std::rethrow_exception(thrown_);  // what happened here says more
      throw;
    }
  }

  Saved saved() const override {
    if (!source_) std::rethrow_exception(thrown_);
    auto point = source_->at(given_);
    return {std::move(point.entries), {{"skip", point.skip}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    if (source_) source_->restore(before, given_, own.count("skip"));
  }
  void release() override {
    if (source_) source_->release();
  }

  EndAgreement agreement_;
  std::optional<TrackedInput> source_;  ///< empty where it could not be opened
  bool looked_ = false;
  std::optional<Item> ahead_;
  std::exception_ptr thrown_;  ///< in place of the item ahead
};

}  // namespace

StagePtr make_full_sync(SettingPtr setting, int stage, const std::function<StagePtr()>& open_input, SeatPtr seat) {
  return std::make_unique<FullSyncStream>(std::move(setting), stage, open_input, seat);
}

}  // namespace levada::pipeline
