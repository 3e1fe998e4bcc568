#include "levada/reduce/bucketer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "levada/base/error.h"
#include "levada/reduce/bucketing.h"
#include "levada/reduce/reducer.h"

namespace levada {
namespace {

/// Messages of a rank that others have not taken yet.
constexpr int window = 16;
/// Of the memory into which inputs are copied; a larger one has its own.
constexpr std::size_t message_bytes = std::size_t{4} << 20;

/// From how many bytes on empty() gives a message's memory: to copy less costs less than a message.
constexpr std::size_t least_placed_bytes = std::size_t{256} << 10;

/// Memory that empty() gave, and that of the contribution to which it goes.
struct Placed {
  std::optional<Contribution> contribution;
  std::size_t bytes = 0;
};

void check_cpu(const TensorView& input) {
  if (!input.device().is_cpu()) throw InvalidArgument("a tensor to be reduced does not lie in this machine's memory");
}

/// Throws InvalidArgument, naming the position, unless `inputs` are one a rank and all alike.
void check_alike(std::span<const TensorView> inputs, int ranks) {
  if (inputs.size() != static_cast<std::size_t>(ranks)) {
    throw InvalidArgument(
        fmt::format("{} tensors were given for the {} ranks of the group: it takes one a rank", inputs.size(), ranks));
  }
  const TensorView& first = inputs.front();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_cpu(inputs[i]);
    if (inputs[i].dtype() == first.dtype() && inputs[i].shape() == first.shape()) continue;
    throw InvalidArgument(fmt::format("tensor {} is {} {}, tensor 0 is {} {}: all ranks' pieces are alike", i,
                                      inputs[i].dtype().name(), inputs[i].shape().to_string(), first.dtype().name(),
                                      first.shape().to_string()));
  }
}

/// Of the part along dim 0 that each rank gets.
Shape part_of(const Shape& shape, int ranks) {
  if (shape.rank() == 0) throw InvalidArgument("a tensor without dimensions cannot be cut; give a list of one a rank");
  Shape part = shape;
  part[0] = (shape[0] + ranks - 1) / ranks;
  return part;
}

}  // namespace

/// An input from when it is enqueued to when its callback has run.
struct Bucketer::Entry {
  int key = 0;
  std::size_t position = 0;                ///< among the results of `outcome`
  std::shared_ptr<const Outcome> outcome;  ///< null while the bucket is open
  Callback callback;
  Shape shape;  ///< of the result, which the outcome may have padded or in another form
};

class Bucketer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(const BucketerOptions& options) : options_(options), bucketing_(options.capacity) {
    if (options.in_flight < 1) {
      throw InvalidArgument(fmt::format("in_flight is {}; at least one bucket has to be", options.in_flight));
    }
  }

  Handle reduce_scatter(const Group& group, std::span<const TensorView> inputs, ReduceOp op, Callback callback) {
    const int ranks = group->info().size;
    check_alike(inputs, ranks);
    const Shape& piece = inputs.front().shape();
    const std::size_t bytes = inputs.front().byte_count();
    return enqueue(
        group, {.op = op, .dtype = inputs.front().dtype(), .pieces = {piece}},
        [&](Contribution& contribution) {
          std::byte* to = contribution.data(contribution.add(piece));
          for (std::size_t r = 0; r < inputs.size(); ++r) copy_elements(inputs[r], to + r * bytes);
        },
        std::move(callback));
  }

  Handle reduce_scatter(const Group& group, const Tensor& input, ReduceOp op, Callback callback) {
    check_cpu(input);
    const Shape piece = part_of(input.shape(), group->info().size);
    const Agenda agenda{.op = op, .dtype = input.dtype(), .pieces = {piece}};
    if (auto placed = placed_at(input)) return enqueue_placed(group, agenda, *placed, std::move(callback));
    return enqueue(
        group, agenda, [&](Contribution& contribution) { add_padded(contribution, piece, input); },
        std::move(callback));
  }

  Handle all_reduce(const Group& group, const TensorView& input, ReduceOp op, Callback callback) {
    check_cpu(input);
    check_reducible(input.dtype(), op);
    deliver();
    run_callbacks();
    const auto elements = static_cast<std::int64_t>(input.element_count());
    const Shape piece = part_of(Shape{elements}, group->info().size);
    return launch_alone(
        group, {.collective = Collective::all_reduce, .op = op, .dtype = input.dtype(), .pieces = {piece}},
        input.shape(), [&](Contribution& contribution) { add_padded(contribution, piece, input); },
        std::move(callback));
  }

  Handle all_gather(const Group& group, const TensorView& input, Callback callback) {
    check_cpu(input);
    deliver();
    run_callbacks();
    Shape all{group->info().size};
    for (const std::int64_t extent : input.shape()) all.push_back(extent);
    return launch_alone(
        group, {.collective = Collective::all_gather, .dtype = input.dtype(), .pieces = {input.shape()}}, all,
        [&](Contribution& contribution) { copy_elements(input, contribution.data(contribution.add(input.shape()))); },
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
    auto placed = std::make_shared<Placed>();
    placed->contribution = reducer_of(group).contribution({.dtype = dtype}, bytes, 1);
    placed->bytes = bytes;
    std::byte* data = placed->contribution->data(placed->contribution->add(piece));
    std::erase_if(placed_, [](const auto& each) { return each.second.expired(); });
    placed_.emplace(data, placed);
    return Tensor(TensorView(dtype, shape, data), std::shared_ptr<const void>(placed), true);
  }

  void flush() {
    ++stats_.flushes;
    do {
      for (const int key : bucketing_.flush()) launch(key);
      while (!launched_.empty()) {
        wait_for(*launched_.front().entries.front()->outcome);
        deliver();
      }
      run_callbacks();
    } while (bucketing_.any_open() || !launched_.empty());
    if (const auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

  void teardown() {
    if (bucketing_.any_open() || !launched_.empty() || !ready_.empty()) {
      throw InvalidArgument(fmt::format("{} inputs are not reduced yet: flush() before teardown()", pending()));
    }
    for (auto& [engine, reducer] : reducers_) reducer->trim();
  }

  const BucketerStats& stats() const { return stats_; }

  Tensor result_of(const std::shared_ptr<Entry>& entry) {
    if (!entry->outcome) {
      for (const int key : bucketing_.flush_through(entry->key)) launch(key);
    }
    wait_for(*entry->outcome);
    deliver();
    run_callbacks();
    return result(*entry);
  }

  static Tensor result(const Entry& entry) {
    const Tensor& tensor = entry.outcome->results()[entry.position];
    return Tensor(TensorView(tensor.dtype(), entry.shape, tensor.view().data()), tensor.owner(), tensor.is_writable());
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
    bool open_end = false;  ///< whether the last one takes more inputs
    std::vector<std::shared_ptr<Entry>> entries;
  };
  struct Launched {
    std::vector<std::shared_ptr<Entry>> entries;
    std::size_t called = 0;  ///< of how many the callbacks have run
  };
  using Fill = std::function<void(Contribution&)>;

  Reducer& reducer_of(const Group& group) {
    auto& reducer = reducers_[group.get()];
    if (!reducer) reducer = std::make_unique<Reducer>(group, window, options_.timeout);
    return *reducer;
  }

  int key_of(const Group& group, const Agenda& agenda) {
    const Key key{group.get(), agenda.op, agenda.dtype};
    const auto found = std::find(keys_.begin(), keys_.end(), key);
    if (found != keys_.end()) return static_cast<int>(found - keys_.begin());
    keys_.push_back(key);
    buckets_.emplace_back();
    return static_cast<int>(keys_.size()) - 1;
  }

  std::shared_ptr<Placed> placed_at(const Tensor& input) {
    const auto found = placed_.find(input.view().data());
    if (found == placed_.end()) return nullptr;
    auto placed = found->second.lock();
    if (!placed || !placed->contribution) return nullptr;
    const bool whole = input.view().is_contiguous() && input.view().byte_count() == placed->bytes &&
                       input.dtype() == placed->contribution->agenda().dtype;
    return whole ? placed : nullptr;
  }

  /// `input`, as it lies in memory, and zeros up to the end of the last piece.
  static void add_padded(Contribution& contribution, const Shape& piece, const TensorView& input) {
    const std::size_t number = contribution.add(piece);
    std::byte* to = contribution.data(number);
    copy_elements(input, to);
    const Agenda& agenda = contribution.agenda();
    const std::size_t all = agenda.piece_bytes(number) * static_cast<std::size_t>(contribution.count());
    std::memset(to + input.byte_count(), 0, all - input.byte_count());
  }

  Handle handle_of(std::shared_ptr<Entry> entry) {
    Handle handle;
    handle.bucketer_ = weak_from_this();
    handle.entry_ = std::move(entry);
    return handle;
  }

  static std::size_t bytes_of(const Agenda& input, int ranks) {
    return input.piece_bytes(0) * static_cast<std::size_t>(input.count(ranks));
  }

  /// `input`: an agenda with one piece, the input's.
  Handle enqueue(const Group& group, const Agenda& input, const Fill& fill, Callback callback) {
    check_reducible(input.dtype, input.op);
    const std::size_t bytes = bytes_of(input, group->info().size);
    count(bytes, bytes);
    const int key = key_of(group, input);
    const auto placement = place(key, bytes);
    if (placement.alone) return finish_alone(launch_alone(group, input, input.pieces[0], fill, std::move(callback)));
    fill(room_for(group, buckets_[static_cast<std::size_t>(key)], input, bytes));
    return entered(key, input.pieces[0], std::move(callback));
  }

  Handle enqueue_placed(const Group& group, const Agenda& input, Placed& placed, Callback callback) {
    check_reducible(input.dtype, input.op);
    Contribution contribution = std::move(*placed.contribution);
    placed.contribution.reset();
    contribution.set_op(input.op);
    count(placed.bytes, 0);
    const int key = key_of(group, input);
    const auto placement = place(key, placed.bytes);
    std::vector<Contribution> alone;
    auto& bucket = buckets_[static_cast<std::size_t>(key)];
    auto& contributions = placement.alone ? alone : bucket.contributions;
    contributions.push_back(std::move(contribution));
    if (placement.alone) {
      return finish_alone(launched(group, std::move(alone), input.pieces[0], std::move(callback)));
    }
    bucket.open_end = false;
    return entered(key, input.pieces[0], std::move(callback));
  }

  void count(std::size_t bytes, std::size_t copied) {
    ++stats_.inputs;
    stats_.bytes += bytes;
    stats_.bytes_copied += copied;
  }

  Bucketing::Placement place(int key, std::size_t bytes) {
    deliver();
    run_callbacks();
    const auto placement = bucketing_.apply(key, bytes);
    if (placement.close) launch(*placement.close);
    return placement;
  }

  Contribution& room_for(const Group& group, Bucket& bucket, const Agenda& input, std::size_t bytes) {
    if (!bucket.open_end || !bucket.contributions.back().has_room(bytes)) {
      Agenda agenda = input;
      agenda.pieces.clear();
      const auto capacity = static_cast<std::size_t>(std::max<std::int64_t>(options_.capacity, 0));
      bucket.contributions.push_back(
          reducer_of(group).contribution(agenda, std::max(bytes, std::min(message_bytes, capacity)), 64));
      bucket.open_end = true;
    }
    return bucket.contributions.back();
  }

  Handle entered(int key, const Shape& shape, Callback callback) {
    auto& entries = buckets_[static_cast<std::size_t>(key)].entries;
    auto entry = std::make_shared<Entry>(
        Entry{.key = key, .position = entries.size(), .outcome = {}, .callback = std::move(callback), .shape = shape});
    entries.push_back(entry);
    return handle_of(std::move(entry));
  }

  void launch(int key) {
    while (under_way() >= options_.in_flight) {
      wait_for(*launched_.front().entries.front()->outcome);
      deliver();
    }
    Bucket bucket = std::exchange(buckets_[static_cast<std::size_t>(key)], {});
    Reducer& reducer = *reducers_.at(keys_[static_cast<std::size_t>(key)].group);
    const auto outcome = reducer.launch(std::move(bucket.contributions));
    for (const auto& entry : bucket.entries) entry->outcome = outcome;
    launched_.push_back({.entries = std::move(bucket.entries)});
    ++stats_.buckets;
  }

  Handle launch_alone(const Group& group, const Agenda& input, const Shape& shape, const Fill& fill,
                      Callback callback) {
    Agenda agenda = input;
    agenda.pieces.clear();
    std::vector<Contribution> contributions;
    contributions.push_back(reducer_of(group).contribution(agenda, bytes_of(input, group->info().size), 1));
    fill(contributions.back());
    return launched(group, std::move(contributions), shape, std::move(callback));
  }

  Handle launched(const Group& group, std::vector<Contribution> contributions, const Shape& shape, Callback callback) {
    auto entry = std::make_shared<Entry>(Entry{.key = -1,
                                               .position = 0,
                                               .outcome = reducer_of(group).launch(std::move(contributions)),
                                               .callback = std::move(callback),
                                               .shape = shape});
    launched_.push_back({.entries = {entry}});
    return handle_of(std::move(entry));
  }

  /// Waits for what is larger than a bucket, and runs its callback before those of buckets that are still under way.
  Handle finish_alone(Handle handle) {
    ++stats_.alone;
    wait_for(*handle.entry_->outcome);
    deliver();
    const auto is_its = [&](const Launched& each) { return each.entries.front() == handle.entry_; };
    std::erase_if(launched_, is_its);
    std::erase_if(ready_, is_its);
    run_callback(*handle.entry_);
    run_callbacks();
    return handle;
  }

  std::ptrdiff_t under_way() const {
    return std::count_if(launched_.begin(), launched_.end(),
                         [](const Launched& each) { return !each.entries.front()->outcome->done(); });
  }

  std::size_t pending() const {
    std::size_t inputs = 0;
    for (const Bucket& bucket : buckets_) inputs += bucket.entries.size();
    for (const Launched& each : launched_) inputs += each.entries.size();
    return inputs;
  }

  void wait_for(const Outcome& outcome) {
    if (outcome.done()) return;
    const auto begin = Clock::now();
    try {
      static_cast<void>(outcome.results());
    } catch (const std::exception&) {
      // Thrown where its results are asked for.
    }
    stats_.waited += Clock::now() - begin;
  }

  /// Moves what has ended, in the order in which it was launched, to what callbacks are to be run of.
  void deliver() {
    while (!launched_.empty() && launched_.front().entries.front()->outcome->done()) {
      ready_.push_back(std::move(launched_.front()));
      launched_.pop_front();
    }
  }

  /// One callback after the other: what a callback itself calls runs none of the others.
  void run_callbacks() {
    if (running_) return;
    running_ = true;
    while (!ready_.empty()) {
      Launched& first = ready_.front();
      const std::shared_ptr<Entry> entry = std::move(first.entries[first.called++]);
      if (first.called == first.entries.size()) ready_.pop_front();
      run_callback(*entry);
    }
    running_ = false;
  }

  void run_callback(Entry& entry) {
    const Callback callback = std::exchange(entry.callback, {});
    try {
      const Tensor tensor = result(entry);
      if (callback) callback(tensor);
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }

  BucketerOptions options_;
  BucketerStats stats_;
  Bucketing bucketing_;
  std::map<const Engine*, std::unique_ptr<Reducer>> reducers_;
  std::vector<Key> keys_;
  std::vector<Bucket> buckets_;  ///< by key
  std::deque<Launched> launched_;
  std::deque<Launched> ready_;
  std::map<const std::byte*, std::weak_ptr<Placed>> placed_;  ///< by where it begins
  bool running_ = false;                                      ///< a callback
  std::exception_ptr error_;
};

bool Bucketer::Handle::done() const {
  return entry_->outcome && entry_->outcome->done();
}

Tensor Bucketer::Handle::wait() const {
  const auto bucketer = bucketer_.lock();
  if (bucketer) return bucketer->result_of(entry_);
  if (!entry_->outcome) throw EngineError("the bucketer went before the input's bucket was reduced");
  return Impl::result(*entry_);
}

Tensor Bucketer::Handle::get() const {
  if (!entry_->outcome) throw InvalidArgument("the input's bucket is still open; flush(), or wait()");
  return Impl::result(*entry_);
}

Bucketer::Bucketer(const BucketerOptions& options) : impl_(std::make_shared<Impl>(options)) {}
Bucketer::~Bucketer() = default;

Bucketer::Handle Bucketer::reduce_scatter(const Group& group, std::span<const TensorView> inputs, ReduceOp op,
                                          Callback callback) {
  return impl_->reduce_scatter(group, inputs, op, std::move(callback));
}
Bucketer::Handle Bucketer::reduce_scatter(const Group& group, const Tensor& input, ReduceOp op, Callback callback) {
  return impl_->reduce_scatter(group, input, op, std::move(callback));
}
Bucketer::Handle Bucketer::all_reduce(const Group& group, const TensorView& input, ReduceOp op, Callback callback) {
  return impl_->all_reduce(group, input, op, std::move(callback));
}
Bucketer::Handle Bucketer::all_gather(const Group& group, const TensorView& input, Callback callback) {
  return impl_->all_gather(group, input, std::move(callback));
}
Tensor Bucketer::empty(const Group& group, DType dtype, const Shape& shape) {
  return impl_->empty(group, dtype, shape);
}
void Bucketer::flush() {
  impl_->flush();
}
void Bucketer::teardown() {
  impl_->teardown();
}
BucketerStats Bucketer::stats() const {
  return impl_->stats();
}

}  // namespace levada
