#include <thread>

#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/pipeline/streams.h"
#include "levada/pipeline/tracked_input.h"

namespace levada::pipeline {
namespace {

/// Between looks at whether a pause is over.
constexpr auto pause_interval = std::chrono::milliseconds(10);

/// A ring between the thread that makes items ahead and the one that takes them. Each sleeps where it has nothing to
/// do: the taker until there is an item, the other until half of the ring is free, so that not every item wakes it.
class PrefetchStream final : public StageStream {
 public:
  PrefetchStream(SettingPtr setting, int stage, StagePtr input, PullThreadPtr ahead, PullPointPtr pull_point)
      : StageStream(setting, stage, nullptr),
        source_(setting, stage, std::move(input)),
        ahead_(std::move(ahead)),
        pull_point_(std::move(pull_point)),
        depth_(operation<Prefetch>().depth) {}
  ~PrefetchStream() override { stop(); }
  PrefetchStream(const PrefetchStream&) = delete;
  PrefetchStream& operator=(const PrefetchStream&) = delete;

  void start() {
    ring_.resize(static_cast<std::size_t>(depth_));
    source_.begin();
    thread_ = start_thread("prefetching", [this] { run(); });
  }
  std::weak_ptr<PrefetchStream*> self() const { return self_; }

 private:
  struct Slot {
    std::optional<Item> item;
    std::exception_ptr thrown;
  };

  std::optional<Item> make() override {
    const auto blocker = [this] { return taken_ == put_ ? ahead_ : nullptr; };
    if (blocker() != nullptr)
      waited([&] { return setting_->pull_threads.wait(*pull_point_->thread(), blocker, false); });
    auto& slot = slot_of(taken_);
    auto item = std::move(slot.item);
    slot.item.reset();
    const auto thrown = std::move(slot.thrown);
    ++taken_;
    if (2 * (put_ - taken_) <= depth_) setting_->pull_threads.wake(ahead_);
    if (thrown) std::rethrow_exception(thrown);
    given_ += item.has_value();
    source_.keep_from(given_);
    return item;
  }

  void run() {
    const PullThread::OnThisThread mine(*ahead_);
    const auto blocker = [this] { return put_ - taken_ == depth_ ? pull_point_->thread() : nullptr; };
    try {
      bool more = true;
      while (more && !ahead_->stopped()) {
        if (blocker() != nullptr) setting_->pull_threads.wait(*ahead_, blocker, false);
        if (is_paused()) {
          std::this_thread::sleep_for(pause_interval);
          continue;
        }
        more = fill(slot_of(put_));
        ++put_;
        setting_->pull_threads.wake(pull_point_->thread());
      }
    } catch (const Stopped&) {
    }
  }

  bool is_paused() const { return setting_->paused != nullptr && *setting_->paused; }

  bool fill(Slot& slot) {
    try {
      slot.item = source_.next();
    } catch (const Stopped&) {
      throw;
    } catch (...) {
      slot.thrown = std::current_exception();
    }
    return slot.item.has_value();
  }

  void stop() {
    if (!thread_.joinable()) return;
    setting_->pull_threads.stop(*ahead_);
    thread_.join();
  }

  Slot& slot_of(std::int64_t number) { return ring_[static_cast<std::size_t>(number % depth_)]; }

  Saved saved() const override {
    auto point = source_.at(given_);
    return {std::move(point.entries), {{"skip", point.skip}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    source_.restore(before, given_, own.count("skip"));
  }
  void release() override {
    self_.reset();
    stop();
    source_.release();
  }

  std::shared_ptr<PrefetchStream*> self_ = std::make_shared<PrefetchStream*>(this);
  TrackedInput source_;
  PullThreadPtr ahead_;
  PullPointPtr pull_point_;
  std::int64_t depth_;
  std::vector<Slot> ring_;
  std::atomic<std::int64_t> put_{0}, taken_{0};
  std::thread thread_;
};

}  // namespace

Prefetched make_prefetch(SettingPtr setting, int stage, StagePtr input, PullThreadPtr ahead, PullPointPtr pull_point) {
  auto stream = std::make_unique<PrefetchStream>(std::move(setting), stage, std::move(input), std::move(ahead),
                                                 std::move(pull_point));
  const auto start = [weak = stream->self()] {
    if (const auto self = weak.lock()) (*self)->start();
  };
  return {std::move(stream), start};
}

}  // namespace levada::pipeline
