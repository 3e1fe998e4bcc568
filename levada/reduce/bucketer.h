// Many small reduce-scatters become few large ones.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "levada/base/deadline.h"
#include "levada/engine/engine.h"
#include "levada/reduce/sum.h"
#include "levada/tensor/tensor.h"

namespace levada {

struct BucketerOptions {
  /// Bytes of a bucket, of all ranks' pieces together. Larger inputs are reduced by themselves; zero: all are.
  std::int64_t capacity = std::int64_t{25} << 20;
  /// Buckets of a group, all-reduces and all-gathers among them, that are launched and whose callbacks have not run.
  /// The call that launches one more waits for the oldest.
  int in_flight = 2;
  Duration timeout = std::chrono::minutes(30);  ///< of one wait
  /// As WaitFor::poll, on the thread of a call that waits: to look for signals, say. What it throws ends the call, and
  /// the group (Engine::abort()), so that no other rank waits for this one.
  std::function<void()> poll = {};
};

struct BucketerStats {
  std::int64_t inputs = 0;
  std::int64_t buckets = 0;  ///< launched
  std::int64_t alone = 0;    ///< inputs that were larger than a bucket
  std::int64_t flushes = 0;
  std::uint64_t bytes = 0;         ///< of all inputs
  std::uint64_t bytes_copied = 0;  ///< of those that did not lie in memory that empty() gave
  Duration waited{};               ///< for buckets under way
};

/// Reduces and scatters tensors of a group of ranks, or several. All ranks of a group enqueue the same inputs in the
/// same order; buckets are launched in the order of enqueueing, also across groups, and reduced on a thread a group
/// while the caller goes on.
///
/// Callbacks run on the caller's thread, once each, in the order of launching within a group and of enqueueing within a
/// bucket: those of a group's bucket n at the end of the call that launches its bucket n + in_flight, or before wait()
/// for a later bucket of the group or flush() returns; that of an input larger than a bucket in the call that enqueues
/// it. They never run earlier because a reduction happens to be done: when they run follows from the calls alone, so a
/// callback may enqueue, and its inputs take the same place on every rank of the group. What a callback calls runs no
/// other callback, except that of an input larger than a bucket. One that throws does not keep others from running:
/// flush() throws the first such exception.
///
/// An input for which the group has no memory in time has not been enqueued: it may be tried again. One thread at a
/// time: a call throws InvalidArgument while another thread is inside one; a Handle's done() and get() may be called
/// from any thread. A forked child, which lacks its threads, must neither use nor destroy it.
class Bucketer {
  class Impl;
  struct Bucket;

 public:
  using Callback = std::function<void(const Tensor& result)>;
  using Group = std::shared_ptr<Engine>;

  /// One input's result, to be waited for or asked. A value.
  class Handle {
   public:
    /// Whether it has been reduced, well or badly.
    bool done() const;
    /// The result, which lives as long as it is held. Closes the input's bucket where it is still open, and those that
    /// were opened before it. Runs the group's callbacks up to this bucket's. All ranks of the group must call it at
    /// the same place among their inputs, unless the bucket is launched and no callback enqueues. Throws what the
    /// reduction threw, and EngineError once the Bucketer is gone.
    Tensor wait() const;
    /// The same on any thread, for an input that has been launched; runs no callback. Throws InvalidArgument where its
    /// bucket is open.
    Tensor get() const;
    /// Waits until get() need not: false if that is not so by the deadline. Throws as get() does where the bucket is
    /// open.
    bool is_reduced(Deadline deadline) const;

   private:
    friend class Impl;
    std::weak_ptr<Impl> bucketer_;
    std::shared_ptr<Bucket> bucket_;
    std::size_t position_ = 0;
  };

  explicit Bucketer(const BucketerOptions& options = {});
  /// Gives up what has not been reduced; its callbacks do not run.
  ~Bucketer();
  Bucketer(const Bucketer&) = delete;
  Bucketer& operator=(const Bucketer&) = delete;

  /// `inputs`: one tensor for each rank of the group, all of one shape and dtype, on the CPU, strided as they may be;
  /// they may be used again when the call returns. Rank r's result is the sum, or average, of all ranks' inputs[r]. The
  /// first call with a group is collective. Throws InvalidArgument, naming position and values, for a list of another
  /// length and tensors that differ; Unsupported for a dtype without such a reduction.
  Handle reduce_scatter(const Group& group, std::span<const TensorView> inputs, ReduceOp op, Callback callback = {});
  /// One tensor, of which each rank gets a part along dim 0, ceil(extent / ranks) long: where it does not divide, zeros
  /// stand for what is missing at the end, as FullyShardedDataParallel pads (Zhao et al., VLDB 2023). Memory that
  /// empty() gave is not copied, and belongs to the reduction from now on: it must not be touched any more.
  Handle reduce_scatter(const Group& group, const Tensor& input, ReduceOp op, Callback callback = {});

  /// The sum, or average, of all ranks' inputs, of the same shape, on every rank.
  Handle all_reduce(const Group& group, const TensorView& input, ReduceOp op, Callback callback = {});
  /// All ranks' inputs, of the same shape, side by side along a new first dimension.
  Handle all_gather(const Group& group, const TensorView& input, Callback callback = {});

  /// A writable tensor for reduce_scatter(), in the group's memory unless it is small. Throws InvalidArgument unless
  /// its extent along dim 0 divides by the number of ranks.
  Tensor empty(const Group& group, DType dtype, const Shape& shape);

  /// Launches what is open, also by callbacks that it runs, and waits for everything. Throws the first exception of a
  /// reduction or a callback since the last flush().
  void flush();
  /// Gives memory back to the system; the next call takes some anew. Throws InvalidArgument while work is pending.
  void teardown();
  BucketerStats stats() const;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace levada
