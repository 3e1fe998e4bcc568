// Reduce-scatters of many small tensors, carried out as few large ones.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "levada/base/deadline.h"
#include "levada/engine/engine.h"
#include "levada/reduce/sum.h"
#include "levada/tensor/tensor.h"

namespace levada {

struct BucketerOptions {
  /// Bytes of a bucket, all ranks' pieces together. Larger inputs are reduced alone; zero: all are.
  std::int64_t capacity = std::int64_t{25} << 20;
  /// Launched buckets of a group whose callbacks have not run; all-reduces and all-gathers count as buckets. The call
  /// that launches one more waits for the oldest.
  int in_flight = 2;
  /// Of one wait. Where it passes within a reduction, the group ends, so that no other rank waits for this one.
  Duration timeout = std::chrono::minutes(30);
  /// As WaitFor::poll, on the thread of a call that waits, for example to check for signals. Its exception ends the
  /// call and aborts the group, so that no other rank waits for this one.
  std::function<void()> poll = {};
  /// The same on all ranks: Bucketers of one name reduce together, in whatever order a rank uses those of a group. Two
  /// of a rank cannot have one name in one group: the later one's first call throws InvalidArgument.
  std::string name = {};
  int job_rank = -1;  ///< this rank's number in the whole job, which errors name beside that in the group; -1: unknown
};

struct BucketerStats {
  std::int64_t inputs = 0;
  std::int64_t buckets = 0;        ///< launched
  std::int64_t alone = 0;          ///< inputs larger than a bucket
  std::uint64_t flushes = 0;       ///< that have ended
  std::uint64_t bytes = 0;         ///< of all inputs
  std::uint64_t bytes_copied = 0;  ///< of inputs that did not lie where empty() had made them, in this order
  Duration waited{};               ///< for launched buckets
};

/// Reduces and scatters tensors of one or several groups of ranks. All ranks of a group enqueue the same inputs in the
/// same order, with flush() equally often and at the same places among them. If a rank leaves one out, a collective up
/// to the end of the next flush() in which it takes part throws InvalidArgument on all. Buckets are launched in the
/// order of enqueueing, also across groups, and reduced on one thread for each group while the caller continues.
///
/// Each callback runs once, on the caller's thread. Callbacks of a group run in the order of launching, and within a
/// bucket in the order of enqueueing. Those of bucket n run at the end of the call that launches bucket n + in_flight
/// of the group, or before wait() for a later bucket of the group or flush() returns; that of an input larger than a
/// bucket runs in the call that enqueues it. They never run earlier because a reduction happens to be done: when they
/// run follows from the calls alone. So a callback may enqueue, and its inputs take the same place on every rank of the
/// group. Calls inside a callback run no other callback, except that of an input larger than a bucket. If a callback
/// throws, the others still run, and flush() throws the first such exception.
///
/// If the group has no memory for an input in time, the input has not been enqueued, and the caller may try again. One
/// thread at a time: a call throws InvalidArgument while another thread is inside one, except a Handle's done() and
/// get(). A forked child, which lacks the threads, must neither use nor destroy it.
class Bucketer {
  class Impl;
  struct Bucket;

 public:
  using Callback = std::function<void(const Tensor& result)>;
  using Group = std::shared_ptr<Engine>;

  /// The result of one input, which may be still to come. A value.
  class Handle {
   public:
    /// Returns whether the reduction has ended, with a result or with an exception.
    bool done() const;
    /// Waits for the result and returns it; whoever holds it keeps the memory of all results of its bucket. If the
    /// input's bucket is open, launches it and those of its group that were opened before it. Runs the group's
    /// callbacks up to this bucket's. All ranks of the group must call it at the same place among their inputs, unless
    /// the bucket is launched and no callback enqueues. Throws the reduction's exception, and EngineError if the
    /// Bucketer was destroyed before the bucket was launched.
    Tensor wait() const;
    /// The same on any thread, for an input that has been launched; runs no callback. Throws InvalidArgument if the
    /// bucket is open.
    Tensor get() const;
    /// Waits until done(). Returns false if that is not so by the deadline. Throws as get() does if the bucket is open.
    bool is_reduced(Deadline deadline) const;

   private:
    friend class Impl;
    std::weak_ptr<Impl> bucketer_;
    std::shared_ptr<Bucket> bucket_;
    std::size_t position_ = 0;
  };

  explicit Bucketer(const BucketerOptions& options = {});
  /// Cancels what has not been reduced; its callbacks do not run.
  ~Bucketer();
  Bucketer(const Bucketer&) = delete;
  Bucketer& operator=(const Bucketer&) = delete;

  /// `inputs`: one tensor for each rank of the group, all of one shape and dtype, on the CPU, with any strides. The
  /// caller may reuse them when the call returns. Rank r's result is the sum, or average, of all ranks' inputs[r]. The
  /// first call with a group is collective. Throws InvalidArgument, naming position and values, for a list of another
  /// length and for tensors that differ; Unsupported for a dtype without such a reduction.
  Handle reduce_scatter(const Group& group, std::span<const TensorView> inputs, ReduceOp op, Callback callback = {});
  /// The same for one tensor, of which each rank gets a part along dim 0, ceil(extent / ranks) long. If it does not
  /// divide, it is padded with zeros at the end, as FullyShardedDataParallel pads (Zhao et al., VLDB 2023). A tensor of
  /// empty() belongs to the reduction from now on, and must not be used any more.
  Handle reduce_scatter(const Group& group, const Tensor& input, ReduceOp op, Callback callback = {});

  /// Every rank's result is the sum, or average, of all ranks' inputs, which have one shape.
  Handle all_reduce(const Group& group, const TensorView& input, ReduceOp op, Callback callback = {});
  /// Every rank's result is all ranks' inputs, which have one shape, side by side along a new first dimension.
  Handle all_gather(const Group& group, const TensorView& input, Callback callback = {});

  /// Returns a writable tensor in the group's memory. reduce_scatter() does not copy it, if tensors of one group and
  /// dtype are enqueued in the order in which they were made. Tensors share memory, which is released once all of them
  /// have been reduced or destroyed. Throws InvalidArgument unless the extent along dim 0 divides by the number of
  /// ranks.
  Tensor empty(const Group& group, DType dtype, const Shape& shape);

  /// Launches all open buckets, also those that its callbacks open, and waits for everything. Leaves the groups that
  /// nobody else keeps. Throws the first exception of a reduction or a callback since the last flush().
  void flush();
  /// Releases cached memory to the system; the next call allocates again. Throws InvalidArgument while work is pending.
  void teardown();
  BucketerStats stats() const;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace levada
