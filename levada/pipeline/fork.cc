#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "levada/base/error.h"
#include "levada/pipeline/checkpointed_input.h"
#include "levada/pipeline/graph_builder.h"

namespace levada::pipeline {

/// A queue of at most `buffer` items that some branch has taken and another has not. If branches are read on several
/// threads, a branch that is ahead by the whole buffer waits for the slowest one, unless no thread could continue.
class ForkQueue {
 public:
  ForkQueue(GraphContextPtr context, int stage, StagePtr input)
      : context_(std::move(context)), stage_(stage), source_(context_, stage, std::move(input)) {}

  /// `thread`: the number of the thread that pulls from the branch.
  int add(int stage, int thread) {
    if (!branches_.empty() && thread != branches_.front().thread) several_threads_ = true;
    branches_.emplace_back(stage, thread);
    return static_cast<int>(branches_.size()) - 1;
  }

  /// Called once all branches have been restored, before the first next(): restores the input to the position of the
  /// branch that is furthest behind.
  void finish_restore() {
    is_restored_ = true;
    auto& from = slowest();
    end_ = base_ = from.position;
    for (const auto& each : branches_) furthest_restored_ = std::max(furthest_restored_, each.position.load());
    if (!from.restored) return;
    try {
      source_.restore(from.restored->entries, base_, from.restored->skip);
    } catch (const std::exception&) {
      throw_as_failed(*context_, stage_, base_);
    }
    for (auto& each : branches_) each.restored.reset();
  }

  std::optional<Item> next(int number) {
    auto& branch = of(number);
    auto lock = locked();
    for (;;) {
      if (branch.position < end_) return take(branch);
      if (thrown_) std::rethrow_exception(thrown_);
      if (ended_) return std::nullopt;
      if (is_too_far(branch)) {
        const auto is_ready = [&] { return !is_too_far(branch); };
        if (several_threads_ && wait(branch, lock, is_ready, true)) continue;
        // A buffer that holds all items suffices: whether there are more is not known yet.
        if (pulling_ || pull(branch, lock)) fail_full(branch);
      } else if (pulling_) {
        const auto is_ready = [&] { return branch.position < end_ || !pulling_; };
        wait(branch, lock, is_ready, false);
      } else {
        pull(branch, lock);
      }
    }
  }

  /// Called when the branch needs no more items.
  void leave(int number) {
    const auto lock = locked();
    of(number).gone = true;
    drop_front();
    wake_others(of(number));
  }

  CheckpointedInput::Point at(int number) {
    const auto lock = locked();
    const auto& branch = of(number);
    if (!is_restored_ && branch.restored) return *branch.restored;
    return source_.at(is_restored_ ? branch.position.load() : 0);
  }

  void restore(int number, CheckpointedInput::Point point, std::int64_t position) {
    of(number).restored = std::move(point);
    of(number).position = position;
  }

 private:
  struct Reader {
    Reader(int number, int pulled_by) : stage(number), thread(pulled_by) {}
    int stage;
    int thread;
    WaitPoint wait_point;
    std::atomic<std::int64_t> position{0};  ///< number of items that it has taken
    std::atomic<bool> gone{false};
    std::optional<CheckpointedInput::Point> restored;  ///< position to restore; until the first item is requested
  };

  Reader& of(int number) { return branches_[static_cast<std::size_t>(number)]; }
  std::int64_t buffer() const { return std::get<Fork>(context_->stage(stage_).operation).buffer; }

  std::unique_lock<std::mutex> locked() {
    return several_threads_ ? std::unique_lock(mutex_) : std::unique_lock(mutex_, std::defer_lock);
  }

  /// Returns the slowest of the remaining branches.
  Reader& slowest() {
    Reader* found = nullptr;
    for (auto& each : branches_) {
      if (!each.gone && (found == nullptr || each.position < found->position)) found = &each;
    }
    return found == nullptr ? branches_.front() : *found;
  }

  // Branches begin at different positions if one has a stage that restores an earlier position of its input.
  bool is_too_far(const Reader& branch) {
    return branch.position - std::max(slowest().position.load(), furthest_restored_) >= buffer();
  }

  [[noreturn]] void fail_full(const Reader& ahead) {
    const auto& behind = slowest();
    throw StageFailed({.stage = context_->stage(stage_).name,
                       .process = context_->process,
                       .item = ahead.position,
                       .kind = ErrorKind::invalid_argument,
                       .message = fmt::format(
                           "its buffer of {} items is full: branch \"{}\" is {} items ahead of \"{}\", which is not "
                           "read until the former has yielded more; raise buffer, or read the branches at the same "
                           "pace",
                           buffer(), context_->stage(ahead.stage).name, ahead.position - behind.position,
                           context_->stage(behind.stage).name)});
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
    // Erases only if all items have been taken, or so many that moving the remaining ones costs little per item.
    if (front_ < items_.size() && 2 * front_ < items_.size() + 16) return;
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(front_));
    front_ = 0;
  }

  /// Adds the next item. Returns false, and marks the end, if there is none. Other branches may take items
  /// concurrently.
  bool pull(Reader& branch, std::unique_lock<std::mutex>& lock) {
    source_.begin();
    pulling_ = true;
    if (several_threads_) lock.unlock();
    std::optional<Item> item;
    std::exception_ptr thrown;
    try {
      const PrefetchThread::Unstoppable until_made(several_threads_ ? PrefetchThread::current() : nullptr);
      item = source_.next();
    } catch (...) {
      thrown = std::current_exception();
    }
    if (several_threads_) lock.lock();
    pulling_ = false;
    thrown_ = thrown;
    ended_ = !item;
    if (item) {
      count(context_->counts[static_cast<std::size_t>(stage_)].items);
      items_.push_back(*std::move(item));
      ++end_;
    }
    wake_others(branch);
    return !ended_;
  }

  void wake_others(const Reader& branch) {
    if (!several_threads_) return;
    for (auto& other : branches_) {
      if (other.thread != branch.thread) context_->threads.wake(other.wait_point);
    }
  }

  template <typename Ready>
  bool wait(Reader& branch, std::unique_lock<std::mutex>& lock, const Ready& is_ready, bool can_fail) {
    lock.unlock();
    const bool can_go_on = context_->threads.wait(branch.wait_point, is_ready, can_fail);
    lock.lock();
    return can_go_on;
  }

  GraphContextPtr context_;
  int stage_;
  CheckpointedInput source_;
  std::deque<Reader> branches_;
  bool several_threads_ = false;

  std::mutex mutex_;
  std::vector<Item> items_;
  std::size_t front_ = 0;             ///< items before this have been taken by all
  std::int64_t base_ = 0;             ///< position of the item at the front
  std::atomic<std::int64_t> end_{0};  ///< position after the item at the back
  std::int64_t furthest_restored_ = 0;
  bool is_restored_ = false, ended_ = false;
  std::exception_ptr thrown_;
  std::atomic<bool> pulling_{false};  ///< a branch is pulling an item from the input
};

namespace {

class BranchIterator final : public StageIterator {
 public:
  BranchIterator(GraphContextPtr context, int stage, std::shared_ptr<ForkQueue> fork, int thread)
      : StageIterator(std::move(context), stage, nullptr),
        fork_(std::move(fork)),
        number_in_fork_(fork_->add(stage, thread)) {}
  ~BranchIterator() override { release(); }
  BranchIterator(const BranchIterator&) = delete;
  BranchIterator& operator=(const BranchIterator&) = delete;

 private:
  std::optional<Item> make() override {
    return pulled([this] { return fork_->next(number_in_fork_); });
  }
  SavedState saved() const override {
    auto point = fork_->at(number_in_fork_);
    return {std::move(point.entries), {{"skip", point.skip}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    fork_->restore(number_in_fork_, {{before.begin(), before.end()}, own.count("skip")}, num_inputs_);
  }
  void release() override {
    if (auto fork = std::exchange(fork_, nullptr)) fork->leave(number_in_fork_);
  }

  std::shared_ptr<ForkQueue> fork_;
  int number_in_fork_;
};

}  // namespace

std::shared_ptr<ForkQueue> make_fork(const StagePlace& at) {
  return std::make_shared<ForkQueue>(at.builder.context(), at.stage, at.input());
}

void finish_restore(ForkQueue& fork) {
  fork.finish_restore();
}

StagePtr make_stage(const Branch&, const StagePlace& at) {
  return at.make<BranchIterator>(at.builder.fork(at.before()), at.thread);
}

// If the fork is the end, and its branches are elsewhere, its items pass unchanged.
StagePtr make_stage(const Fork&, const StagePlace& at) {
  return at.input();
}

}  // namespace levada::pipeline
