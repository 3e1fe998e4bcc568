#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "levada/base/error.h"
#include "levada/pipeline/streams.h"
#include "levada/pipeline/tracked_input.h"

namespace levada::pipeline {

/// The items that one branch has had and another has not. Branches may be at work on several threads.
class Forked {
 public:
  Forked(SettingPtr setting, int stage, StagePtr input, SeatPtr behind)
      : setting_(setting), stage_(stage), source_(setting, stage, std::move(input)), behind_(std::move(behind)) {}

  int add(int stage, SeatPtr seat) {
    if (!branches_.empty() && seat != branches_.front().seat) several_lanes_ = true;
    branches_.emplace_back(stage, std::move(seat));
    return static_cast<int>(branches_.size()) - 1;
  }

  /// Before the first next(): what comes before goes on where the branch goes on that is furthest back.
  void settle() {
    settled_ = true;
    behind_->take(branches_.front().seat->lane());
    auto& from = slowest();
    base_ = from.position;
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
      if (branch.position < end()) return take(branch);
      if (thrown_) std::rethrow_exception(thrown_);
      if (ended_) return std::nullopt;
      if (is_too_far(branch)) {
        unlocked(lock, [&] { wait_for_slowest(branch); });
      } else if (several_lanes_ && puller_.lane() != nullptr) {
        unlocked(lock, [&] { wait_for_puller(branch); });
      } else {
        pull(branch, lock);
      }
    }
  }

  /// The branch asks for nothing any more.
  void leave(int number) {
    const auto lock = locked();
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
    Reader(int number, SeatPtr at) : stage(number), seat(std::move(at)) {}
    int stage;
    SeatPtr seat;
    std::atomic<std::int64_t> position{0};  ///< items it has had
    std::atomic<bool> gone{false};
    std::optional<TrackedInput::Point> restored;  ///< to go back to its position; until the first item is asked for
  };

  Reader& of(int number) { return branches_[static_cast<std::size_t>(number)]; }
  std::int64_t end() const { return base_ + static_cast<std::int64_t>(items_.size() - front_); }
  std::int64_t buffer() const { return std::get<Fork>(setting_->stage(stage_).operation).buffer; }

  std::unique_lock<std::mutex> locked() {
    return several_lanes_ ? std::unique_lock(mutex_) : std::unique_lock(mutex_, std::defer_lock);
  }
  template <typename Action>
  void unlocked(std::unique_lock<std::mutex>& lock, const Action& action) {
    if (lock.owns_lock()) lock.unlock();
    action();
    if (several_lanes_) lock.lock();
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
    const auto until = wanted ? std::min(slowest().position.load(), end()) : end();
    for (; base_ < until; ++base_) items_[front_++] = Item();
    source_.keep_from(base_);
    // All of them, or so many that moving the rest is little work for each.
    if (front_ < items_.size() && 2 * front_ < items_.size() + 16) return;
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(front_));
    front_ = 0;
  }

  void pull(Reader& branch, std::unique_lock<std::mutex>& lock) {
    std::optional<Item> item;
    std::exception_ptr thrown;
    const auto make = [&] {
      try {
        item = source_.next();
      } catch (...) {
        thrown = std::current_exception();
      }
    };
    source_.begin();
    if (several_lanes_) {
      const auto lane = branch.seat->lane();
      puller_.take(lane);
      behind_->take(lane);
      unlocked(lock, [&] {
        const Lane::Unstoppable until_made(*lane);
        make();
      });
      puller_.take(nullptr);
    } else {
      make();
    }
    thrown_ = thrown;
    ended_ = !item;
    if (item) {
      items_.push_back(std::move(*item));
      count(setting_->counts[static_cast<std::size_t>(stage_)].items);
    }
    wake_others(branch);
  }

  void wake_others(const Reader& branch) {
    if (!several_lanes_) return;
    for (auto& other : branches_) {
      if (other.seat != branch.seat) setting_->lanes.wake(other.seat->lane());
    }
  }

  void wait_for_puller(Reader& branch) {
    setting_->lanes.wait(
        *branch.seat->lane(), [this] { return puller_.lane(); }, false);
  }

  void wait_for_slowest(Reader& branch) {
    const auto blocker = [&]() -> LanePtr { return is_too_far(branch) ? slowest().seat->lane() : nullptr; };
    if (setting_->lanes.wait(*branch.seat->lane(), blocker, true)) return;
    const auto& ahead = setting_->stage(branch.stage).name;
    const auto& behind = setting_->stage(slowest().stage).name;
    throw StageFailed({.stage = setting_->stage(stage_).name,
                       .process = setting_->process,
                       .item = branch.position,
                       .kind = ErrorKind::invalid_argument,
                       .message = fmt::format(
                           "what takes from both its branches waits for \"{}\", which is {} items ahead of \"{}\", "
                           "and so for \"{}\" too; it takes a buffer of more than {}",
                           ahead, buffer(), behind, behind, buffer())});
  }

  SettingPtr setting_;
  int stage_;
  TrackedInput source_;
  SeatPtr behind_;
  std::deque<Reader> branches_;
  bool several_lanes_ = false;

  std::mutex mutex_;
  std::vector<Item> items_;
  std::size_t front_ = 0;  ///< before this they have been taken
  std::int64_t base_ = 0;  ///< position of the item at the front
  std::int64_t furthest_restored_ = 0;
  bool settled_ = false, ended_ = false;
  std::exception_ptr thrown_;
  Seat puller_;  ///< whoever has what comes before make an item
};

namespace {

class BranchStream final : public StageStream {
 public:
  BranchStream(SettingPtr setting, int stage, std::shared_ptr<Forked> fork, SeatPtr seat)
      : StageStream(std::move(setting), stage, nullptr),
        fork_(std::move(fork)),
        number_in_fork_(fork_->add(stage, std::move(seat))) {}
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

std::shared_ptr<Forked> make_fork(SettingPtr setting, int stage, StagePtr input, SeatPtr behind) {
  return std::make_shared<Forked>(std::move(setting), stage, std::move(input), std::move(behind));
}

void settle(Forked& fork) {
  fork.settle();
}

StagePtr make_branch(SettingPtr setting, int stage, std::shared_ptr<Forked> fork, SeatPtr seat) {
  return std::make_unique<BranchStream>(std::move(setting), stage, std::move(fork), std::move(seat));
}

}  // namespace levada::pipeline
