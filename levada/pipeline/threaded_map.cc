#include <condition_variable>
#include <deque>
#include <mutex>

#include "levada/base/threads.h"
#include "levada/pipeline/checkpointed_input.h"
#include "levada/pipeline/graph_builder.h"

namespace levada::pipeline {
namespace {

/// The interval at which a waiting thread checks whether it has to stop.
constexpr auto attend_interval = std::chrono::milliseconds(10);

/// One call of the function.
struct Task {
  Item item;
  std::optional<Item> made;
  std::exception_ptr thrown;
  bool done = false;
};

/// A thread pool that calls one function. One thread starts tasks and waits for them.
class MapThreads {
 public:
  MapThreads(const Map& map) : function_(map.function) {
    try {
      for (int i = 0; i < map.threads; ++i) threads_.start("mapping", [this] { run(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~MapThreads() { stop(); }
  MapThreads(const MapThreads&) = delete;
  MapThreads& operator=(const MapThreads&) = delete;

  std::shared_ptr<Task> start(Item item) {
    auto task = std::make_shared<Task>(Task{std::move(item), {}, {}});
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(task);
    }
    has_input_.notify_one();
    return task;
  }

  void wait(const Task& task, GraphContext& context) {
    std::unique_lock lock(mutex_);
    while (!done_.wait_for(lock, attend_interval, [&] { return task.done; })) {
      lock.unlock();
      context.attend(Clock::now());
      lock.lock();
    }
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    has_input_.notify_all();
    threads_.join();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      has_input_.wait(lock, [this] { return over_ || !waiting_.empty(); });
      if (over_) return;
      const auto task = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      try {
        task->made = function_(std::move(task->item));
      } catch (...) {
        task->thrown = std::current_exception();
      }
      lock.lock();
      task->done = true;
      done_.notify_one();
    }
  }

  std::function<Item(Item)> function_;
  std::mutex mutex_;
  std::condition_variable has_input_, done_;
  std::deque<std::shared_ptr<Task>> waiting_;
  bool over_ = false;
  ThreadGroup threads_;
};

struct MappedItem {
  std::shared_ptr<Task> task;
  std::int64_t position = 0;
};

class ThreadedMapIterator final : public HoldingIterator<MappedItem> {
 public:
  ThreadedMapIterator(GraphContextPtr context, int stage, StagePtr input)
      : HoldingIterator(std::move(context), stage, std::move(input)) {}

 private:
  const Map& map() const { return operation<Map>(); }

  std::optional<Item> make_one() override {
    while (true) {
      fill();
      if (held_.empty() && failed_input_) std::rethrow_exception(failed_input_);
      if (held_.empty()) return std::nullopt;
      const auto held = std::move(held_.front());
      held_.erase(held_.begin());
      current_ = held.position;
      threads_->wait(*held.task, *context_);
      auto made = attempted(map().on_error, [&] {
        if (held.task->thrown) std::rethrow_exception(held.task->thrown);
        return std::move(*held.task->made);
      });
      if (made) return made;
    }
  }

  /// A failure of an earlier stage is thrown after the items that precede it, unless these have later places.
  void fill() try {
    while (!failed_input_ && static_cast<std::int64_t>(held_.size()) < capacity()) {
      if (!held_.empty() && context_->would_wait && waited(context_->would_wait)) break;
      auto item = pull_tracked();
      if (!item) break;
      held_.push_back(hold(std::move(*item), num_inputs_ - 1));
    }
  } catch (const StageFailed&) {
    if (context_->places_by_input) throw;
    failed_input_ = std::current_exception();
  }

  std::int64_t skip_impl(std::int64_t items) override {
    return map().on_error == OnError::raise && !has_begun() ? skip_tracked(items) : make_and_drop(items);
  }

  MappedItem hold(Item item, std::int64_t position) override {
    if (!threads_) threads_.emplace(map());
    return {threads_->start(std::move(item)), position};
  }
  /// One running and one queued task per thread.
  std::int64_t capacity() const override { return 2 * std::int64_t{map().threads}; }
  std::int64_t item_number() const override { return current_; }
  void release() override {
    threads_.reset();
    HoldingIterator::release();
  }

  std::int64_t current_ = 0;  ///< the position of the item that is returned
  std::exception_ptr failed_input_;
  std::optional<MapThreads> threads_;
};

}  // namespace

StagePtr make_threaded_map(const StagePlace& at) {
  return at.make<ThreadedMapIterator>(at.input());
}

}  // namespace levada::pipeline
