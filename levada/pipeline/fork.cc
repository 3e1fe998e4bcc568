#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "levada/base/error.h"
#include "levada/pipeline/reachability.h"
#include "levada/pipeline/streams.h"
#include "levada/pipeline/tracked_input.h"

namespace levada::pipeline {

/// The items that one branch has had and another has not. Branches may be at work on several threads.
class Forked {
 public:
  Forked(SettingPtr setting, int stage, StagePtr input, PullPointPtr behind)
      : setting_(std::move(setting)),
        stage_(stage),
        source_(setting_, stage, std::move(input)),
        behind_(std::move(behind)) {}

  int add(int stage, PullPointPtr pull_point) {
    if (!branches_.empty() && pull_point != branches_.front().pull_point) several_threads_ = true;
    branches_.emplace_back(stage, std::move(pull_point));
    return static_cast<int>(branches_.size()) - 1;
  }

  /// Before the first next(): what comes before goes on where the branch goes on that is furthest back.
  void settle() {
    settled_ = true;
    behind_->take(branches_.front().pull_point->thread());
    auto& from = slowest();
    end_ = base_ = from.position;
    for (const auto& each : branches_) furthest_restored_ = std::max(furthest_restored_, each.position.load());
    if (!from.restored) return;
    try {
      source_.restore(from.restored->entries, base_, from.restored->skip);
    } catch (const std::exception&) {
      throw_as_failed(*setting_, stage_, base_);
    }
    for (auto& each : branches_) each.restored.reset();
  }

  std::optional<Item> next(int number) {
    auto& branch = of(number);
    auto lock = locked();
    for (;;) {
      if (overrun_) end_overrun(branch);
      if (branch.position < end_) return take(branch);
      if (thrown_) std::rethrow_exception(thrown_);
      if (ended_) return std::nullopt;
      if (is_too_far(branch) && !is_let_on(branch)) {
        bool others_can_move = true;
        unlocked(lock, [&] { others_can_move = wait_for_slowest(branch); });
        if (!others_can_move) let_on(branch);
      } else if (several_threads_ && puller_.thread() != nullptr) {
        unlocked(lock, [&] { wait_for_puller(branch); });
      } else if (overrun_ || is_too_far(branch)) {
        if (auto item = make_for_nobody_else(branch, lock)) return item;
      } else if (auto item = make(branch, lock)) {
        items_.push_back(*std::move(item));
        ++end_;
      }
    }
  }

  /// The branch asks for nothing any more.
  void leave(int number) {
    const auto lock = locked();
    if (overrun_ && &of(number) != ahead_ && of(number).position <= slowest().position) overran_ = true;
    of(number).gone = true;
    drop_front();
    wake_others(of(number));
  }

  TrackedInput::Point at(int number) {
    const auto lock = locked();
    const auto& branch = of(number);
    if (!settled_ && branch.restored) return *branch.restored;
    return source_.at(settled_ ? branch.position.load() : 0);
  }

  void restore(int number, TrackedInput::Point point, std::int64_t position) {
    of(number).restored = std::move(point);
    of(number).position = position;
  }

 private:
  struct Reader {
    Reader(int number, PullPointPtr at) : stage(number), pull_point(std::move(at)) {}
    int stage;
    PullPointPtr pull_point;
    std::atomic<std::int64_t> position{0};  ///< items it has had
    std::atomic<bool> gone{false};
    std::optional<TrackedInput::Point> restored;  ///< to go back to its position; until the first item is asked for
  };

  Reader& of(int number) { return branches_[static_cast<std::size_t>(number)]; }
  std::int64_t buffer() const { return std::get<Fork>(setting_->stage(stage_).operation).buffer; }

  std::unique_lock<std::mutex> locked() {
    return several_threads_ ? std::unique_lock(mutex_) : std::unique_lock(mutex_, std::defer_lock);
  }
  template <typename Action>
  void unlocked(std::unique_lock<std::mutex>& lock, const Action& action) {
    if (lock.owns_lock()) lock.unlock();
    action();
    if (several_threads_) lock.lock();
  }

  /// Of the branches still there, the one that is furthest back.
  Reader& slowest() {
    Reader* found = nullptr;
    for (auto& each : branches_) {
      if (!each.gone && (found == nullptr || each.position < found->position)) found = &each;
    }
    return found == nullptr ? branches_.front() : *found;
  }

  // Branches begin apart where one has a stage that goes back to items that it had before.
  bool is_too_far(const Reader& branch) {
    return branch.position - std::max(slowest().position.load(), furthest_restored_) >= buffer();
  }

  bool is_let_on(const Reader& branch) const { return &branch == ahead_ && branch.position < let_on_until_; }
  /// One item further than the buffer reaches, as nobody can move otherwise.
  void let_on(const Reader& branch) {
    if (overrun_ && overrun_->is_enough()) overrun_->fail(false);
    if (!overrun_) ahead_ = &branch;
    let_on_until_ = branch.position + 1;
  }
  void begin_overrun(const Reader& branch) {
    const auto& behind = slowest();
    const Failure where{.stage = setting_->stage(stage_).name, .process = setting_->process, .item = branch.position};
    auto overrun = std::make_shared<Overrun>(where, setting_->stage(branch.stage).name,
                                             setting_->stage(behind.stage).name, buffer());
    if (!setting_->overruns.begin(joining(branch.stage, behind.stage), overrun)) overrun->fail(false);
    overrun_ = std::move(overrun);
  }
  /// The first stage that items of both reach.
  int joining(int ahead, int behind) const {
    const Reachability reach(setting_->graph);
    int stage = 0;
    while (stage < reach.size() && !(reach.feeds(ahead, stage) && reach.feeds(behind, stage))) ++stage;
    return stage;
  }
  /// Throws where another branch than that which is ahead moves, or has ended.
  void end_overrun(Reader& branch) {
    const bool is_ahead = &branch == ahead_;
    const bool moves = !is_ahead && branch.position <= slowest().position;
    if (!moves && !overran_ && (is_ahead || branch.position < end_)) return;
    const bool exact = moves || overran_;
    overran_ = true;
    wake_others(branch);
    overrun_->fail(exact);
  }
  std::optional<Item> make_for_nobody_else(Reader& branch, std::unique_lock<std::mutex>& lock) {
    auto item = make(branch, lock);
    if (!item) {
      overran_ = overrun_ && !thrown_;
      return item;
    }
    if (!overrun_) begin_overrun(branch);
    branch.position = branch.position + 1;
    overrun_->count();
    return item;
  }

  Item take(Reader& branch) {
    const bool wanted = std::ranges::any_of(branches_, [&](const Reader& other) {
      return &other != &branch && !other.gone && other.position <= branch.position;
    });
    auto& item = items_[front_ + static_cast<std::size_t>(branch.position - base_)];
    auto taken = wanted ? Item(item) : Item(std::move(item));
    branch.position = branch.position + 1;
    if (!wanted) drop_front();
    wake_others(branch);
    return taken;
  }

  void drop_front() {
    const bool wanted = std::ranges::any_of(branches_, [](const Reader& each) { return !each.gone; });
    const auto until = wanted ? std::min(slowest().position.load(), end_.load()) : end_.load();
    for (; base_ < until; ++base_) items_[front_++] = Item();
    source_.keep_from(base_);
    // All of them, or so many that moving the rest is little work for each.
    if (front_ < items_.size() && 2 * front_ < items_.size() + 16) return;
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(front_));
    front_ = 0;
  }

  /// The next item, if there is one; otherwise that is known from now on.
  std::optional<Item> make(Reader& branch, std::unique_lock<std::mutex>& lock) {
    std::optional<Item> item;
    std::exception_ptr thrown;
    const auto pull = [&] {
      try {
        item = source_.next();
      } catch (...) {
        thrown = std::current_exception();
      }
    };
    source_.begin();
    if (several_threads_) {
      const auto thread = branch.pull_point->thread();
      puller_.take(thread);
      behind_->take(thread);
      unlocked(lock, [&] {
        const PullThread::Unstoppable until_made(*thread);
        pull();
      });
      puller_.take(nullptr);
    } else {
      pull();
    }
    thrown_ = thrown;
    ended_ = !item;
    if (item) count(setting_->counts[static_cast<std::size_t>(stage_)].items);
    wake_others(branch);
    return item;
  }

  void wake_others(const Reader& branch) {
    if (!several_threads_) return;
    for (auto& other : branches_) {
      if (other.pull_point != branch.pull_point) setting_->pull_threads.wake(other.pull_point->thread());
    }
  }

  void wait_for_puller(Reader& branch) {
    // Looked at in this order: one that has the next item made already has given the item before it.
    const auto blocker = [&]() -> PullThreadPtr {
      auto puller = puller_.thread();
      return branch.position < end_ ? nullptr : puller;
    };
    setting_->pull_threads.wait(*branch.pull_point->thread(), blocker, false);
  }

  /// False: nobody can move.
  bool wait_for_slowest(Reader& branch) {
    const auto blocker = [&]() -> PullThreadPtr {
      return is_too_far(branch) && !overran_ ? slowest().pull_point->thread() : nullptr;
    };
    return setting_->pull_threads.wait(*branch.pull_point->thread(), blocker, true);
  }

  SettingPtr setting_;
  int stage_;
  TrackedInput source_;
  PullPointPtr behind_;
  std::deque<Reader> branches_;
  bool several_threads_ = false;

  std::mutex mutex_;
  std::vector<Item> items_;
  std::size_t front_ = 0;             ///< before this they have been taken
  std::int64_t base_ = 0;             ///< position of the item at the front
  std::atomic<std::int64_t> end_{0};  ///< position behind the item at the back
  std::int64_t furthest_restored_ = 0;
  bool settled_ = false, ended_ = false;
  std::exception_ptr thrown_;
  PullPoint puller_;  ///< whoever has what comes before make an item

  std::shared_ptr<Overrun> overrun_;
  const Reader* ahead_ = nullptr;  ///< the branch that is let on, if one is
  std::int64_t let_on_until_ = 0;  ///< its position then
  std::atomic<bool> overran_{false};
};

namespace {

class BranchStream final : public StageStream {
 public:
  BranchStream(SettingPtr setting, int stage, std::shared_ptr<Forked> fork, PullPointPtr pull_point)
      : StageStream(std::move(setting), stage, nullptr),
        fork_(std::move(fork)),
        number_in_fork_(fork_->add(stage, std::move(pull_point))) {}
  ~BranchStream() override { release(); }
  BranchStream(const BranchStream&) = delete;
  BranchStream& operator=(const BranchStream&) = delete;

 private:
  std::optional<Item> make() override {
    return pulled([this] { return fork_->next(number_in_fork_); });
  }
  Saved saved() const override {
    auto point = fork_->at(number_in_fork_);
    return {std::move(point.entries), {{"skip", point.skip}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    fork_->restore(number_in_fork_, {{before.begin(), before.end()}, own.count("skip")}, given_);
  }
  void release() override {
    if (auto fork = std::exchange(fork_, nullptr)) fork->leave(number_in_fork_);
  }

  std::shared_ptr<Forked> fork_;
  int number_in_fork_;
};

}  // namespace

std::shared_ptr<Forked> make_fork(SettingPtr setting, int stage, StagePtr input, PullPointPtr behind) {
  return std::make_shared<Forked>(std::move(setting), stage, std::move(input), std::move(behind));
}

void settle(Forked& fork) {
  fork.settle();
}

StagePtr make_branch(SettingPtr setting, int stage, std::shared_ptr<Forked> fork, PullPointPtr pull_point) {
  return std::make_unique<BranchStream>(std::move(setting), stage, std::move(fork), std::move(pull_point));
}

}  // namespace levada::pipeline
