#include "levada/reduce/bucketer.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "levada/base/assert.h"
#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/one_caller.h"
#include "levada/reduce/bucket.h"
#include "levada/reduce/bucketing.h"
#include "levada/reduce/inputs.h"
#include "levada/reduce/members.h"
#include "levada/reduce/slab.h"
#include "levada/reduce/tensor_slabs.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

/// Callbacks may call the bucketer.
OneCaller::Call enter(OneCaller& bucketer) {
  return OneCaller::Call(bucketer, "this bucketer", OneCaller::Nested::allowed);
}

}  // namespace

class Bucketer::Impl : public OneCaller, public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(const BucketerOptions& options)
      : options_(options),
        capacity_(static_cast<std::size_t>(std::max<std::int64_t>(options.capacity, 0))),
        bucketing_(options.capacity),
        tensors_(capacity_),
        members_(options_) {
    if (options.in_flight < 1) {
      throw InvalidArgument(fmt::format("in_flight must be at least 1, got {}", options.in_flight));
    }
  }

  Handle reduce_scatter(const Group& group, std::span<const TensorView> inputs, ReduceOp op, Callback callback) {
    check_alike(inputs, group->info().size);
    check_reducible(inputs.front().dtype(), op);
    const Shape& piece = inputs.front().shape();
    const std::size_t bytes = inputs.front().byte_count();
    const BucketInput input{.op = op, .dtype = inputs.front().dtype(), .piece = piece, .bytes = bytes * inputs.size()};
    const auto copy = [&](std::byte* to, CopyMode mode) {
      for (std::size_t r = 0; r < inputs.size(); ++r) copy_elements(inputs[r], to + r * bytes, mode);
    };
    return enqueue(group, input, copy, std::move(callback));
  }

  Handle reduce_scatter(const Group& group, const Tensor& tensor, ReduceOp op, Callback callback) {
    check_cpu(tensor);
    const int ranks = group->info().size;
    const Shape piece = part_of(tensor.shape(), ranks);
    check_reducible(tensor.dtype(), op);
    const BucketInput input{.op = op,
                            .dtype = tensor.dtype(),
                            .piece = piece,
                            .bytes = bytes_of(tensor.dtype(), piece, ranks),
                            .tensor = &tensor.view()};
    const auto copy = [&](std::byte* to, CopyMode mode) { copy_padded(tensor, input.bytes, to, mode); };
    return enqueue(group, input, copy, std::move(callback));
  }

  Handle all_reduce(const Group& group, const TensorView& tensor, ReduceOp op, Callback callback) {
    check_cpu(tensor);
    check_reducible(tensor.dtype(), op);
    const int ranks = group->info().size;
    const Shape piece = part_of(Shape{static_cast<std::int64_t>(tensor.element_count())}, ranks);
    const BucketInput input{.collective = Collective::all_reduce,
                            .op = op,
                            .dtype = tensor.dtype(),
                            .piece = piece,
                            .bytes = bytes_of(tensor.dtype(), piece, ranks)};
    const auto copy = [&](std::byte* to, CopyMode mode) { copy_padded(tensor, input.bytes, to, mode); };
    return launch_alone(group, input, copy, {std::move(callback), tensor.shape()});
  }

  Handle all_gather(const Group& group, const TensorView& tensor, Callback callback) {
    check_gatherable(tensor);
    Shape all{group->info().size};
    for (const std::int64_t extent : tensor.shape()) all.push_back(extent);
    const BucketInput input{.collective = Collective::all_gather,
                            .dtype = tensor.dtype(),
                            .piece = tensor.shape(),
                            .bytes = tensor.byte_count()};
    const auto copy = [&](std::byte* to, CopyMode mode) { copy_elements(tensor, to, mode); };
    return launch_alone(group, input, copy, {std::move(callback), all});
  }

  Tensor empty(const Group& group, DType dtype, const Shape& shape) {
    const int ranks = group->info().size;
    if (!shape.element_count()) throw InvalidArgument(fmt::format("no tensor has the shape {}", shape.to_string()));
    if (part_of(shape, ranks)[0] * ranks != shape[0]) {
      throw InvalidArgument(fmt::format("dim 0 of {} is not divisible by the {} ranks", shape.to_string(), ranks));
    }
    const TensorSlabs::FillLevel filled{
        .open = largest(group.get(), dtype, [&](int key) { return bucketing_.open_bytes(key); }),
        .usual = largest(group.get(), dtype, [&](int key) { return usual_bytes_[static_cast<std::size_t>(key)]; })};
    const auto make = [&](std::size_t bytes) { return make_slab(group, bytes, Collective::reduce_scatter); };
    const std::size_t bytes = TensorView(dtype, shape, nullptr).byte_count();
    return tensors_.next(*group, dtype, bytes, filled, make)->make_tensor(dtype, shape);
  }

  void flush() {
    do {
      const std::vector<int> keys = bucketing_.flush();
      const auto checks = launch_checks(keys);
      launch_all(keys);
      while (!launched_.empty()) retire(launched_.begin());
      for (const auto& each : checks) {
        each.first->wait_for(each.second);
        keep_error([&each] { static_cast<void>(each.second.get()); });
      }
      run_due_callbacks();
    } while (bucketing_.any_open() || !launched_.empty() || members_.have_unchecked());
    members_.end_flush();
    ++stats_.flushes;
    if (due_.empty()) leave_abandoned_groups();
    if (const auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

  void teardown() {
    if (pending() > 0) {
      throw InvalidArgument(fmt::format("{} inputs are not reduced yet; call flush() before teardown()", pending()));
    }
    tensors_.end();
    members_.trim();
  }

  const BucketerStats& stats() const { return stats_; }

  Tensor result_of(const Bucket& bucket, std::size_t position) {
    if (!bucket.results()) launch_all(bucketing_.flush_through(bucket.key));
    wait_for(bucket);
    while (std::ranges::find(launched_, &bucket, &std::shared_ptr<Bucket>::get) != launched_.end()) {
      retire(oldest_of(bucket.group));
    }
    run_due_callbacks();
    return bucket.result(position);
  }

 private:
  int key_of(const Group& group, const BucketInput& input) {
    const BucketKey key{group.get(), input.op, input.dtype};
    auto found = std::ranges::find(keys_, key);
    if (found == keys_.end()) found = std::ranges::find(keys_, static_cast<const Engine*>(nullptr), &BucketKey::group);
    if (found == keys_.end()) {
      open_.emplace_back();
      usual_bytes_.emplace_back();
      found = keys_.insert(keys_.end(), key);
    }
    const auto number = found - keys_.begin();
    if (*found != key) {
      *found = key;
      usual_bytes_[static_cast<std::size_t>(number)] = 0;
    }
    return static_cast<int>(number);
  }

  /// Forgets the groups that have no other owner.
  void leave_abandoned_groups() {
    for (const Engine* const left : members_.leave_abandoned()) {
      for (BucketKey& key : keys_) {
        if (key.group == left) key.group = nullptr;
      }
      tensors_.leave(*left);
    }
  }

  // ---- memory

  std::shared_ptr<Slab> make_slab(const Group& group, std::size_t bytes, Collective collective) {
    Block block = members_.join(group).reducer->allocate_inputs(Slab::block_bytes(bytes), to_string(collective));
    return std::make_shared<Slab>(*group, std::move(block));
  }

  /// Returns the maximum of `bytes_of` over the keys of a group and dtype, which may differ in operation.
  template <typename BytesOf>
  std::uint64_t largest(const Engine* group, DType dtype, BytesOf bytes_of) const {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      if (keys_[i].group == group && keys_[i].dtype == dtype) bytes = std::max(bytes, bytes_of(static_cast<int>(i)));
    }
    return bytes;
  }

  /// Returns the slab in which empty() made the input, if the input can be the bucket's next one; else null.
  std::shared_ptr<Slab> slab_of(const Group& group, const Bucket& bucket, const BucketInput& input) const {
    if (input.tensor == nullptr || input.tensor->byte_count() != input.bytes) return nullptr;
    auto slab = tensors_.find(*group, *input.tensor);
    const bool continues = slab && !bucket.slabs.empty() && bucket.slabs.back() == slab;
    return slab && (continues || slab->num_entered() == 0) ? slab : nullptr;
  }

  // ---- buckets

  std::shared_ptr<Bucket> make_bucket(const Group& group, const BucketInput& input, int key) {
    auto bucket = std::make_shared<Bucket>();
    bucket->group = group.get();
    bucket->key = key;
    bucket->dtype = input.dtype;
    bucket->spec = {.collective = input.collective, .op = input.op, .dtype = input.dtype, .flush = stats_.flushes};
    return bucket;
  }

  /// Adds an input to a bucket, in place or with `copy`. If it throws, nothing has been added. `slab_bytes`: size of a
  /// new slab for copies, if the bucket needs one.
  template <typename Copy>
  void add(const Group& group, Bucket& bucket, const BucketInput& input, Copy copy, std::size_t slab_bytes,
           Bucket::Entry entry) {
    auto& slabs = bucket.slabs;
    if (auto slab = slab_of(group, bucket, input)) {
      if (slabs.empty() || slabs.back() != slab) slabs.push_back(std::move(slab));
    } else {
      if (slabs.empty() || !slabs.back()->is_all_entered() || !slabs.back()->has_room(input.bytes)) {
        slabs.push_back(make_slab(group, slab_bytes, input.collective));
      }
      // A bucket is read only when it is complete, so the data after its first message need not stay in a cache.
      const std::size_t together = std::max(slabs.size() * Slab::message_bytes, input.bytes);
      copy(slabs.back()->reserve(input.bytes), copy_mode_for(together));
      if (input.collective == Collective::reduce_scatter) stats_.bytes_copied += input.bytes;
    }
    slabs.back()->enter_next();
    bucket.bytes += input.bytes;
    bucket.spec.pieces.push_back(input.piece);
    bucket.spec.numbers.push_back(members_.join(group).inputs++);
    bucket.entries.push_back(std::move(entry));
    if (input.collective != Collective::reduce_scatter) return;
    ++stats_.inputs;
    stats_.bytes += input.bytes;
  }

  /// Enqueues an input. If it throws, the input has not been enqueued, so a rank that retries stays in step with the
  /// others.
  template <typename Copy>
  Handle enqueue(const Group& group, const BucketInput& input, Copy copy, Callback callback) {
    const int key = key_of(group, input);
    const auto placement = bucketing_.apply(members_.join(group).number, key, input.bytes);
    if (placement.alone) return reduce_alone(group, input, copy, std::move(callback));
    const auto index = static_cast<std::size_t>(key);
    auto& open = open_[index];
    try {
      if (placement.close) launch(*placement.close, false);
      if (!open) open = make_bucket(group, input, key);
      const std::size_t slab = tensors_.slab_bytes(input.bytes, bucketing_.open_bytes(key), usual_bytes_[index]);
      add(group, *open, input, copy, slab, {std::move(callback), input.piece});
    } catch (...) {
      bucketing_.undo(key, input.bytes);
      throw;
    }
    Handle handle = handle_of(open, open->entries.size() - 1);
    run_due_callbacks();  // after this input, because callbacks may enqueue others
    return handle;
  }

  /// Reduces an input that is larger than a bucket, and runs its callback before those of launched buckets.
  template <typename Copy>
  Handle reduce_alone(const Group& group, const BucketInput& input, Copy copy, Callback callback) {
    const auto bucket = make_bucket(group, input, -1);
    add(group, *bucket, input, copy, input.bytes, {std::move(callback), input.piece});
    ++stats_.alone;
    start(*bucket, true);
    run_callback(*bucket, 0);
    run_due_callbacks();
    return handle_of(bucket, 0);
  }

  /// Launches an input as a separate bucket.
  template <typename Copy>
  Handle launch_alone(const Group& group, const BucketInput& input, Copy copy, Bucket::Entry entry) {
    make_room(group.get());
    const auto bucket = make_bucket(group, input, -1);
    add(group, *bucket, input, copy, input.bytes, std::move(entry));
    start(*bucket, false);
    launched_.push_back(bucket);
    run_due_callbacks();
    return handle_of(bucket, 0);
  }

  /// Makes all ranks of each group compare whether they flush after the same inputs. The last bucket of a group carries
  /// that information, if it is among `keys`, which are to be launched; a group without one needs a collective.
  std::vector<std::pair<Reducer*, std::shared_future<Results>>> launch_checks(const std::vector<int>& keys) {
    std::set<const Engine*> said;
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      Bucket& bucket = *open_[static_cast<std::size_t>(*key)];
      if (said.insert(bucket.group).second) bucket.spec.is_last = true;
    }
    std::vector<std::pair<Reducer*, std::shared_future<Results>>> checks;
    for (const auto& [group, reducer] : members_.take_unchecked()) {
      if (said.contains(group)) continue;
      CollectiveSpec spec{
          .collective = Collective::flush, .dtype = dtypes::uint8, .flush = stats_.flushes, .is_last = true};
      Slab empty(*group, reducer->allocate_inputs(Slab::block_bytes(0), to_string(spec.collective)));
      checks.emplace_back(reducer, reducer->launch(std::move(spec), {empty.send()}, false));
    }
    return checks;
  }

  Handle handle_of(std::shared_ptr<Bucket> bucket, std::size_t position) {
    Handle handle;
    handle.bucketer_ = weak_from_this();
    handle.bucket_ = std::move(bucket);
    handle.position_ = position;
    return handle;
  }

  /// Launches the buckets of `keys`. The caller waits for all of them, so the last one can run on this thread. Starts
  /// all of them even if a wait for room throws: their buckets are no longer open, and a handle that waits for one
  /// needs its results.
  void launch_all(const std::vector<int>& keys) {
    for (auto key = keys.begin(); key != keys.end(); ++key) {
      try {
        launch(*key, key + 1 == keys.end());
      } catch (...) {
        while (++key != keys.end()) start_open(*key, false);
        throw;
      }
    }
  }

  /// Starts the bucket even if the wait for room throws: the reduction then ends immediately in its aborted group.
  void launch(int key, bool awaited) {
    try {
      make_room(keys_[static_cast<std::size_t>(key)].group);
    } catch (...) {
      start_open(key, false);
      throw;
    }
    start_open(key, awaited);
  }

  void start_open(int key, bool awaited) {
    const auto index = static_cast<std::size_t>(key);
    LEVADA_ASSERT(open_[index] && !open_[index]->entries.empty(), "a bucket is launched with inputs, once");
    launched_.push_back(std::exchange(open_[index], nullptr));
    usual_bytes_[index] = launched_.back()->bytes;
    ++stats_.buckets;
    start(*launched_.back(), awaited);
  }

  void start(Bucket& bucket, bool awaited) {
    std::vector<BucketMessage> messages;
    for (const auto& slab : std::exchange(bucket.slabs, {})) messages.push_back(slab->send());
    const auto begin = Clock::now();
    bucket.launched(members_.find(bucket.group)->reducer->launch(std::move(bucket.spec), std::move(messages), awaited));
    if (!awaited) return;
    stats_.waited += Clock::now() - begin;
    wait_for(bucket);
  }

  using BucketQueue = std::deque<std::shared_ptr<Bucket>>;

  BucketQueue::iterator oldest_of(const Engine* group) {
    return std::ranges::find(launched_, group, [](const auto& bucket) { return bucket->group; });
  }

  /// Waits until a group has room for one more bucket. The callbacks that become due depend on the enqueued inputs, not
  /// on the progress of reductions, so they are the same on all ranks of the group.
  void make_room(const Engine* group) {
    const auto is_of_group = [group](const auto& bucket) { return bucket->group == group; };
    while (std::ranges::count_if(launched_, is_of_group) >= options_.in_flight) retire(oldest_of(group));
  }

  /// Waits for a bucket. Its callbacks are then due.
  void retire(BucketQueue::iterator launched) {
    wait_for(**launched);
    due_.push_back(std::move(*launched));
    launched_.erase(launched);
  }

  std::size_t pending() const {
    std::size_t inputs = 0;
    for (const auto& each : open_) inputs += each ? each->entries.size() : 0;
    for (const auto& each : launched_) inputs += each->entries.size();
    for (const auto& each : due_) inputs += each->entries.size() - each->num_called;
    return inputs;
  }

  void wait_for(const Bucket& bucket) {
    const auto* const member = members_.find(bucket.group);
    if (member == nullptr) return;  // the group was left after all its reductions had ended
    const auto begin = Clock::now();
    member->reducer->wait_for(*bucket.results());
    stats_.waited += Clock::now() - begin;
  }

  /// Runs callbacks one after another: calls inside a callback run none of the others.
  void run_due_callbacks() {
    while (!running_ && !due_.empty()) {
      const std::shared_ptr<Bucket> first = due_.front();
      LEVADA_ASSERT(first->num_called < first->entries.size(), "each callback runs once");
      const std::size_t position = first->num_called++;
      if (first->num_called == first->entries.size()) due_.pop_front();
      run_callback(*first, position);
    }
  }

  void run_callback(Bucket& bucket, std::size_t position) {
    const Callback callback = std::exchange(bucket.entries[position].callback, {});
    const bool within_another = std::exchange(running_, true);
    keep_error([&] {
      if (callback) callback(bucket.result(position));
      else static_cast<void>(bucket.results()->get());  // throws the reduction's exception
    });
    running_ = within_another;
  }

  /// Runs `work` and keeps the first exception for flush().
  template <typename Work>
  void keep_error(Work work) {
    try {
      work();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }

  BucketerOptions options_;
  std::size_t capacity_;
  BucketerStats stats_;
  Bucketing bucketing_;
  TensorSlabs tensors_;
  Members members_;
  std::vector<BucketKey> keys_;
  std::vector<std::shared_ptr<Bucket>> open_;  ///< by key; null, or without entries, if none is open
  std::vector<std::uint64_t> usual_bytes_;     ///< by key, size of its last bucket
  BucketQueue launched_;                       ///< in launch order, without those whose callbacks are due
  BucketQueue due_;                            ///< buckets whose callbacks are due, in launch order
  bool running_ = false;                       ///< whether a callback is running
  std::exception_ptr error_;
};

bool Bucketer::Handle::done() const {
  return bucket_->results() && is_reduced(Deadline::after({}));
}

Tensor Bucketer::Handle::wait() const {
  if (const auto bucketer = bucketer_.lock()) {
    const auto call = enter(*bucketer);
    return bucketer->result_of(*bucket_, position_);
  }
  if (!bucket_->results()) throw EngineError("the Bucketer was destroyed before the input's bucket was launched");
  return bucket_->result(position_);
}

Tensor Bucketer::Handle::get() const {
  static_cast<void>(is_reduced(Deadline::after({})));  // throws if the bucket is open
  return bucket_->result(position_);
}

bool Bucketer::Handle::is_reduced(Deadline deadline) const {
  if (!bucket_->results()) throw InvalidArgument("the input's bucket is still open; call flush() or wait()");
  return bucket_->results()->wait_until(deadline.at()) == std::future_status::ready;
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
