#include "levada/reduce/bucketer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/one_caller.h"
#include "levada/reduce/bucketing.h"
#include "levada/reduce/inputs.h"
#include "levada/reduce/placed_memory.h"
#include "levada/reduce/reducer.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

/// Messages of a rank that others have not received yet.
constexpr int window = 64;
/// Of the memory into which inputs are copied; a larger one has its own.
constexpr std::size_t message_bytes = std::size_t{4} << 20;
/// For as many a message has room beside those bytes.
constexpr std::size_t usual_inputs = 64;
/// From how many bytes on empty() gives a message's memory: to copy less costs less than a message.
constexpr std::size_t least_placed_bytes = std::size_t{256} << 10;
/// Callbacks may call the bucketer.
OneCaller::Call enter(OneCaller& bucketer) {
  return OneCaller::Call(bucketer, "this bucketer", OneCaller::Nested::allowed);
}

}  // namespace

/// Inputs that are launched together, from when the first is enqueued to when their callbacks have run.
struct Bucketer::Batch {
  struct Entry {
    Callback callback;
    Shape shape;  ///< of the result, which may have been padded, or in another form
  };
  const Engine* group = nullptr;
  int key = -1;
  DType dtype;
  std::vector<Entry> entries;
  std::size_t called = 0;  ///< of how many the callbacks have run

  void launched(std::shared_ptr<const Outcome> outcome) {
    kept_ = std::move(outcome);
    outcome_ = kept_.get();
  }
  /// Null while the bucket is open. Any thread, and the result likewise.
  const Outcome* outcome() const { return outcome_; }
  Tensor result(std::size_t position) const {
    const Result& memory = outcome()->results()[position];
    return Tensor(TensorView(dtype, entries[position].shape, memory.data), memory.owner, true);
  }

 private:
  std::shared_ptr<const Outcome> kept_;
  std::atomic<const Outcome*> outcome_ = nullptr;
};

class Bucketer::Impl : public OneCaller, public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(const BucketerOptions& options) : options_(options), bucketing_(options.capacity) {
    if (options.in_flight < 1) {
      throw InvalidArgument(fmt::format("in_flight is {}; at least one bucket has to be", options.in_flight));
    }
  }

  Handle reduce_scatter(const Group& group, std::span<const TensorView> inputs, ReduceOp op, Callback callback) {
    const int ranks = group->info().size;
    check_alike(inputs, ranks);
    check_reducible(inputs.front().dtype(), op);
    const Shape& piece = inputs.front().shape();
    const std::size_t bytes = inputs.front().byte_count();
    const Input input{.op = op, .dtype = inputs.front().dtype(), .piece = piece, .bytes = bytes * inputs.size()};
    return enqueue(
        group, input,
        [&](Contribution& contribution, std::size_t position, CopyMode way) {
          std::byte* to = contribution.data(contribution.add(piece, position));
          for (std::size_t r = 0; r < inputs.size(); ++r) copy_elements(inputs[r], to + r * bytes, way);
        },
        std::move(callback));
  }

  Handle reduce_scatter(const Group& group, const Tensor& input, ReduceOp op, Callback callback) {
    check_cpu(input);
    const int ranks = group->info().size;
    const Shape piece = part_of(input.shape(), ranks);
    const Input whole{.op = op, .dtype = input.dtype(), .piece = piece, .bytes = bytes_of(input.dtype(), piece, ranks)};
    check_reducible(input.dtype(), op);
    if (auto placed = placed_.take(*group, input, whole.bytes)) {
      return enqueue_placed(group, whole, *std::move(placed), std::move(callback));
    }
    return enqueue(
        group, whole,
        [&](Contribution& to, std::size_t position, CopyMode way) {
          copy_padded(input, whole.bytes, to.data(to.add(piece, position)), way);
        },
        std::move(callback));
  }

  Handle all_reduce(const Group& group, const TensorView& input, ReduceOp op, Callback callback) {
    check_cpu(input);
    check_reducible(input.dtype(), op);
    const int ranks = group->info().size;
    const Shape piece = part_of(Shape{static_cast<std::int64_t>(input.element_count())}, ranks);
    const Input whole{.collective = Collective::all_reduce,
                      .op = op,
                      .dtype = input.dtype(),
                      .piece = piece,
                      .bytes = bytes_of(input.dtype(), piece, ranks)};
    return launch_at_once(
        group, whole, input.shape(),
        [&](Contribution& to, std::size_t position, CopyMode way) {
          copy_padded(input, whole.bytes, to.data(to.add(piece, position)), way);
        },
        std::move(callback));
  }

  Handle all_gather(const Group& group, const TensorView& input, Callback callback) {
    check_gatherable(input);
    Shape all{group->info().size};
    for (const std::int64_t extent : input.shape()) all.push_back(extent);
    const Input whole{.collective = Collective::all_gather,
                      .dtype = input.dtype(),
                      .piece = input.shape(),
                      .bytes = input.byte_count()};
    return launch_at_once(
        group, whole, all,
        [&](Contribution& contribution, std::size_t position, CopyMode) {
          copy_elements(input, contribution.data(contribution.add(input.shape(), position)));
        },
        std::move(callback));
  }

  Tensor empty(const Group& group, DType dtype, const Shape& shape) {
    const int ranks = group->info().size;
    const Shape piece = part_of(shape, ranks);
    const std::size_t bytes = TensorView(dtype, shape, nullptr).byte_count();
    if (piece[0] * ranks != shape[0]) {
      throw InvalidArgument(fmt::format("dim 0 of {} does not divide by the {} ranks", shape.to_string(), ranks));
    }
    if (bytes < least_placed_bytes) return Tensor::empty(dtype, shape);
    return placed_.give(*group, reducer_of(group).contribution({.dtype = dtype}, bytes, 1), shape, piece);
  }

  void flush() {
    ++stats_.flushes;
    do {
      launch_all(bucketing_.flush());
      while (!launched_.empty()) retire(launched_.begin());
      run_due_callbacks();
    } while (bucketing_.any_open() || !launched_.empty());
    if (const auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

  void teardown() {
    if (pending() > 0) {
      throw InvalidArgument(fmt::format("{} inputs are not reduced yet: flush() before teardown()", pending()));
    }
    for (auto& [engine, reducer] : reducers_) reducer->trim();
  }

  const BucketerStats& stats() const { return stats_; }

  Tensor result_of(const Batch& batch, std::size_t position) {
    if (!batch.outcome()) launch_all(bucketing_.flush_through(batch.key));
    wait_for(batch);
    while (std::ranges::find(launched_, &batch, &std::shared_ptr<Batch>::get) != launched_.end()) {
      retire(oldest_of(batch.group));
    }
    run_due_callbacks();
    return batch.result(position);
  }

 private:
  /// What shares a bucket.
  struct Key {
    const Engine* group = nullptr;
    ReduceOp op = ReduceOp::sum;
    DType dtype;
    bool operator==(const Key&) const = default;
  };
  struct Bucket {
    std::vector<Contribution> contributions;
    std::optional<std::size_t> open;  ///< which one takes more inputs
    std::shared_ptr<Batch> batch;

    std::size_t inputs() const { return batch ? batch->entries.size() : 0; }
  };
  struct Input {
    Collective collective = Collective::reduce_scatter;
    ReduceOp op = ReduceOp::sum;
    DType dtype = {};
    Shape piece = {};
    std::size_t bytes = 0;  ///< of all its pieces

    CollectiveSpec spec() const { return {.collective = collective, .op = op, .dtype = dtype}; }
  };

  Reducer& reducer_of(const Group& group) {
    const auto found = reducers_.find(group.get());
    if (found != reducers_.end()) return *found->second;
    auto made = std::make_unique<Reducer>(group, window, options_.timeout, options_.poll);
    return *reducers_.emplace(group.get(), std::move(made)).first->second;
  }

  int key_of(const Group& group, const Input& input) {
    const Key key{group.get(), input.op, input.dtype};
    const auto found = std::find(keys_.begin(), keys_.end(), key);
    if (found != keys_.end()) return static_cast<int>(found - keys_.begin());
    keys_.push_back(key);
    buckets_.emplace_back();
    return static_cast<int>(keys_.size()) - 1;
  }

  Handle handle_of(std::shared_ptr<Batch> batch, std::size_t position) {
    Handle handle;
    handle.bucketer_ = weak_from_this();
    handle.batch_ = std::move(batch);
    handle.position_ = position;
    return handle;
  }

  /// `fill`: adds the input to a contribution.
  template <typename Fill>
  Handle enqueue(const Group& group, const Input& input, Fill fill, Callback callback) {
    const int key = key_of(group, input);
    const auto placement = place(key, input.bytes);
    if (placement.alone) {
      auto contributions = contribution_of(group, input, fill);
      count(input.bytes, input.bytes);
      return reduce_alone(group, std::move(contributions), input, std::move(callback));
    }
    auto& bucket = buckets_[static_cast<std::size_t>(key)];
    Contribution& contribution = room_for(group, key, input);
    count(input.bytes, input.bytes);
    // Nobody looks at a bucket before it is complete, and it has all but the last of these messages already.
    fill(contribution, bucket.inputs(), copy_mode_for(bucket.contributions.size() * message_bytes));
    return entered(key, input, std::move(callback));
  }

  Handle enqueue_placed(const Group& group, const Input& input, Contribution contribution, Callback callback) {
    count(input.bytes, 0);
    const int key = key_of(group, input);
    const auto placement = place(key, input.bytes);
    auto& bucket = buckets_[static_cast<std::size_t>(key)];
    contribution.settle(input.op, input.piece, placement.alone ? 0 : bucket.inputs());
    if (placement.alone) {
      std::vector<Contribution> alone;
      alone.push_back(std::move(contribution));
      return reduce_alone(group, std::move(alone), input, std::move(callback));
    }
    bucket.contributions.push_back(std::move(contribution));
    return entered(key, input, std::move(callback));
  }

  void count(std::size_t bytes, std::size_t copied) {
    ++stats_.inputs;
    stats_.bytes += bytes;
    stats_.bytes_copied += copied;
  }

  Bucketing::Placement place(int key, std::size_t bytes) {
    const auto placement = bucketing_.apply(key, bytes);
    if (placement.close) launch(*placement.close, false);
    return placement;
  }

  /// For an input that has been placed. Where it throws the input has not been, so that ranks which try it again stay
  /// in step with the others.
  Contribution& room_for(const Group& group, int key, const Input& input) {
    auto& bucket = buckets_[static_cast<std::size_t>(key)];
    if (bucket.open && bucket.contributions[*bucket.open].has_room(input.bytes)) {
      return bucket.contributions[*bucket.open];
    }
    const auto capacity = static_cast<std::size_t>(std::max<std::int64_t>(options_.capacity, 0));
    const std::size_t bytes = std::max(input.bytes, std::min(message_bytes, capacity));
    try {
      bucket.contributions.push_back(reducer_of(group).contribution(input.spec(), bytes, usual_inputs));
    } catch (...) {
      bucketing_.take_back(key, input.bytes);
      throw;
    }
    bucket.open = bucket.contributions.size() - 1;
    return bucket.contributions.back();
  }

  Handle entered(int key, const Input& input, Callback callback) {
    auto& batch = buckets_[static_cast<std::size_t>(key)].batch;
    if (!batch) {
      batch = std::make_shared<Batch>();
      batch->group = keys_[static_cast<std::size_t>(key)].group;
      batch->key = key;
      batch->dtype = input.dtype;
    }
    batch->entries.push_back({std::move(callback), input.piece});
    Handle handle = handle_of(batch, batch->entries.size() - 1);
    run_due_callbacks();  // after this input, which they may follow with others
    return handle;
  }

  /// The caller waits for them all: what comes last need not be handed to another thread.
  void launch_all(const std::vector<int>& keys) {
    for (const int key : keys) launch(key, key == keys.back());
  }

  void launch(int key, bool awaited) {
    const Engine* const group = keys_[static_cast<std::size_t>(key)].group;
    make_room(group);
    Bucket bucket = std::exchange(buckets_[static_cast<std::size_t>(key)], {});
    launch(std::move(bucket.batch), std::move(bucket.contributions), awaited);
    ++stats_.buckets;
  }

  void launch(std::shared_ptr<Batch> batch, std::vector<Contribution> contributions, bool awaited) {
    const auto begin = Clock::now();
    batch->launched(reducers_.at(batch->group)->launch(std::move(contributions), awaited));
    launched_.push_back(std::move(batch));
    if (!awaited) return;
    stats_.waited += Clock::now() - begin;
    wait_for(*launched_.back());
  }

  template <typename Fill>
  std::vector<Contribution> contribution_of(const Group& group, const Input& input, Fill fill) {
    std::vector<Contribution> contributions;
    contributions.push_back(reducer_of(group).contribution(input.spec(), input.bytes, 1));
    fill(contributions.back(), 0, copy_mode_for(input.bytes));
    return contributions;
  }

  static std::shared_ptr<Batch> batch_of(const Group& group, DType dtype, const Shape& shape, Callback callback) {
    auto batch = std::make_shared<Batch>();
    batch->group = group.get();
    batch->dtype = dtype;
    batch->entries.push_back({std::move(callback), shape});
    return batch;
  }

  /// Launches an input of no bucket.
  template <typename Fill>
  Handle launch_at_once(const Group& group, const Input& input, const Shape& shape, Fill fill, Callback callback) {
    make_room(group.get());
    auto contributions = contribution_of(group, input, fill);
    auto batch = batch_of(group, input.dtype, shape, std::move(callback));
    launch(batch, std::move(contributions), false);
    run_due_callbacks();
    return handle_of(std::move(batch), 0);
  }

  /// Reduces an input that is larger than a bucket, and runs its callback before those of buckets that are under way.
  Handle reduce_alone(const Group& group, std::vector<Contribution> contributions, const Input& input,
                      Callback callback) {
    ++stats_.alone;
    auto batch = batch_of(group, input.dtype, input.piece, std::move(callback));
    const auto begin = Clock::now();
    batch->launched(reducer_of(group).launch(std::move(contributions), true));
    stats_.waited += Clock::now() - begin;
    wait_for(*batch);
    run_callback(*batch, 0);
    run_due_callbacks();
    return handle_of(std::move(batch), 0);
  }

  using Launched = std::deque<std::shared_ptr<Batch>>;

  Launched::iterator oldest_of(const Engine* group) {
    return std::ranges::find(launched_, group, [](const auto& batch) { return batch->group; });
  }

  /// Waits until a group has room for one more batch. Which callbacks become due follows from what has been enqueued,
  /// and not from what has been reduced by now, so that it is the same on all ranks of the group.
  void make_room(const Engine* group) {
    const auto is_of_group = [group](const auto& batch) { return batch->group == group; };
    while (std::ranges::count_if(launched_, is_of_group) >= options_.in_flight) retire(oldest_of(group));
  }

  /// Waits for a batch, whose callbacks are due then.
  void retire(Launched::iterator launched) {
    wait_for(**launched);
    due_.push_back(std::move(*launched));
    launched_.erase(launched);
  }

  std::size_t pending() const {
    std::size_t inputs = 0;
    for (const Bucket& bucket : buckets_) inputs += bucket.inputs();
    for (const auto& each : launched_) inputs += each->entries.size();
    for (const auto& each : due_) inputs += each->entries.size() - each->called;
    return inputs;
  }

  void wait_for(const Batch& batch) {
    const auto begin = Clock::now();
    reducers_.at(batch.group)->wait_for(*batch.outcome());
    stats_.waited += Clock::now() - begin;
  }

  /// One callback after the other: what a callback itself calls runs none of the others.
  void run_due_callbacks() {
    while (!running_ && !due_.empty()) {
      const std::shared_ptr<Batch> first = due_.front();
      const std::size_t position = first->called++;
      if (first->called == first->entries.size()) due_.pop_front();
      run_callback(*first, position);
    }
  }

  void run_callback(Batch& batch, std::size_t position) {
    const Callback callback = std::exchange(batch.entries[position].callback, {});
    const bool within_another = std::exchange(running_, true);
    try {
      if (callback) callback(batch.result(position));
      else static_cast<void>(batch.outcome()->results());  // throws what the reduction threw
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
    running_ = within_another;
  }

  BucketerOptions options_;
  BucketerStats stats_;
  Bucketing bucketing_;
  std::map<const Engine*, std::unique_ptr<Reducer>> reducers_;
  std::vector<Key> keys_;
  std::vector<Bucket> buckets_;             ///< by key
  Launched launched_;                       ///< in this order, without those whose callbacks are due
  std::deque<std::shared_ptr<Batch>> due_;  ///< whose callbacks are to be run, in this order
  PlacedMemory placed_;
  bool running_ = false;  ///< a callback
  std::exception_ptr error_;
};

bool Bucketer::Handle::done() const {
  return batch_->outcome() && batch_->outcome()->done();
}

Tensor Bucketer::Handle::wait() const {
  if (const auto bucketer = bucketer_.lock()) {
    const auto call = enter(*bucketer);
    return bucketer->result_of(*batch_, position_);
  }
  if (!batch_->outcome()) throw EngineError("the bucketer went before the input's bucket was reduced");
  return batch_->result(position_);
}

Tensor Bucketer::Handle::get() const {
  static_cast<void>(is_reduced(Deadline::never()));
  return batch_->result(position_);
}

bool Bucketer::Handle::is_reduced(Deadline deadline) const {
  if (!batch_->outcome()) throw InvalidArgument("the input's bucket is still open; flush(), or wait()");
  return batch_->outcome()->wait(deadline);
}

Bucketer::Bucketer(const BucketerOptions& options) : impl_(std::make_shared<Impl>(options)) {}
Bucketer::~Bucketer() = default;

Bucketer::Handle Bucketer::reduce_scatter(const Group& group, std::span<const TensorView> inputs, ReduceOp op,
                                          Callback callback) {
  const OneCaller::Call call = enter(*impl_);
  return impl_->reduce_scatter(group, inputs, op, std::move(callback));
}
Bucketer::Handle Bucketer::reduce_scatter(const Group& group, const Tensor& input, ReduceOp op, Callback callback) {
  const OneCaller::Call call = enter(*impl_);
  return impl_->reduce_scatter(group, input, op, std::move(callback));
}
Bucketer::Handle Bucketer::all_reduce(const Group& group, const TensorView& input, ReduceOp op, Callback callback) {
  const OneCaller::Call call = enter(*impl_);
  return impl_->all_reduce(group, input, op, std::move(callback));
}
Bucketer::Handle Bucketer::all_gather(const Group& group, const TensorView& input, Callback callback) {
  const OneCaller::Call call = enter(*impl_);
  return impl_->all_gather(group, input, std::move(callback));
}
Tensor Bucketer::empty(const Group& group, DType dtype, const Shape& shape) {
  const OneCaller::Call call = enter(*impl_);
  return impl_->empty(group, dtype, shape);
}
void Bucketer::flush() {
  enter(*impl_), impl_->flush();
}
void Bucketer::teardown() {
  enter(*impl_), impl_->teardown();
}
BucketerStats Bucketer::stats() const {
  const OneCaller::Call call = enter(*impl_);
  return impl_->stats();
}

}  // namespace levada
