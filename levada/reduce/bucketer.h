// Combines reduce-scatters of many small tensors into a few large ones.
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
  /// Size of a bucket in bytes, counting all ranks' pieces. A larger input is reduced separately; 0: every input is.
  std::int64_t capacity = std::int64_t{25} << 20;
  /// Maximum number of launched buckets per group whose callbacks have not run; all-reduces and all-gathers count as
  /// buckets. A call that launches one more first waits for the oldest.
  int in_flight = 2;
  /// Limit for each wait. If it expires during a reduction, the group ends, so that no other rank waits for this one.
  Duration timeout = std::chrono::minutes(30);
  /// As WaitFor::poll: runs on the thread of a waiting call, for example to check for signals. Its exception ends the
  /// call and aborts the group, so that no other rank waits for this one.
  std::function<void()> poll = {};
  /// Must be the same on all ranks. Bucketers with the same name reduce together, in whatever order a rank uses the
  /// Bucketers of a group. A rank cannot use two with the same name in one group: the first call of the later one
  /// throws InvalidArgument.
  std::string name = {};
  int job_rank = -1;  ///< rank in the whole job, for errors, in addition to that in the group; -1: unknown
};

struct BucketerStats {
  std::int64_t inputs = 0;
  std::int64_t buckets = 0;        ///< launched buckets
  std::int64_t alone = 0;          ///< inputs larger than a bucket
  std::uint64_t flushes = 0;       ///< completed flushes
  std::uint64_t bytes = 0;         ///< size of all inputs
  std::uint64_t bytes_copied = 0;  ///< size of copied inputs: not made by empty(), or enqueued out of order
  Duration waited{};               ///< time spent waiting for launched buckets
};

/// Reduces and scatters tensors within one or more groups of ranks. All ranks of a group must enqueue the same inputs
/// in the same order, and call flush() at the same points in between. If a rank leaves out an input, a collective up to
/// the end of the next flush() that the rank takes part in throws InvalidArgument on all ranks. Buckets are launched in
/// the order of enqueueing, across groups too, and reduced on one thread per group while the caller continues.
///
/// Each callback runs once, on the caller's thread. Callbacks of a group run in the order of launching, and within a
/// bucket in the order of enqueueing. Those of bucket n run at the end of the call that launches bucket n + in_flight
/// of the group, or before wait() for a later bucket of the group or flush() returns; that of an input larger than a
/// bucket runs in the call that enqueues it. They never run earlier just because a reduction has finished: only the
/// calls determine when they run. A callback may therefore enqueue, and its inputs have the same position on every rank
/// of the group. Calls inside a callback run no other callback, except that of an input larger than a bucket. If a
/// callback throws, the others still run, and flush() throws the first such exception.
///
/// If the group has no memory for an input in time, the input has not been enqueued, and the caller may try again. One
/// thread at a time: a call throws InvalidArgument while another thread is inside one, except a Handle's done() and
/// get(). A forked child lacks the threads and must neither use nor destroy it.
class Bucketer {
  class Impl;
  struct Bucket;

 public:
  using Callback = std::function<void(const Tensor& result)>;
  using Group = std::shared_ptr<Engine>;

  /// The result of one input, possibly still pending. A value type.
  class Handle {
   public:
    /// Returns whether the reduction has ended, with a result or with an exception.
    bool done() const;
    /// Waits for the result and returns it. The returned tensor keeps the memory of all results of its bucket alive. If
    /// the input's bucket is open, launches it and those of its group that were opened before it. Runs the group's
    /// callbacks up to this bucket's. All ranks of the group must call it at the same point between their inputs,
    /// unless the bucket is launched and no callback enqueues. Throws the reduction's exception, and EngineError if the
    /// Bucketer was destroyed before the bucket was launched.
    Tensor wait() const;
    /// Same as wait(), but on any thread, only for an input that has been launched, and without running callbacks.
    /// Throws InvalidArgument if the bucket is open.
    Tensor get() const;
    /// Waits until done() or the deadline, and returns done(). Throws as get() does if the bucket is open.
    bool is_reduced(Deadline deadline) const;

   private:
    friend class Impl;
    std::weak_ptr<Impl> bucketer_;
    std::shared_ptr<Bucket> bucket_;
    std::size_t position_ = 0;
  };

  explicit Bucketer(const BucketerOptions& options = {});
  /// Cancels pending reductions; their callbacks do not run.
  ~Bucketer();
  Bucketer(const Bucketer&) = delete;
  Bucketer& operator=(const Bucketer&) = delete;

  /// `inputs`: one tensor for each rank of the group, all of one shape and dtype, on the CPU, with any strides. The
  /// caller may reuse them as soon as the call returns. Rank r's result is the sum, or average, of all ranks'
  /// inputs[r]. The first call with a group is collective. Throws InvalidArgument, naming position and values, if the
  /// number of tensors is wrong or they differ; Unsupported if the dtype has no such reduction.
  Handle reduce_scatter(const Group& group, std::span<const TensorView> inputs, ReduceOp op, Callback callback = {});
  /// Same for one tensor, of which each rank gets a part along dim 0, ceil(extent / ranks) long. If the extent does not
  /// divide, the tensor is padded with zeros at the end, as in FullyShardedDataParallel (Zhao et al., VLDB 2023). A
  /// tensor from empty() then belongs to the reduction and must not be used any more.
  Handle reduce_scatter(const Group& group, const Tensor& input, ReduceOp op, Callback callback = {});

  /// Every rank's result is the sum, or average, of all ranks' inputs, which must have the same shape.
  Handle all_reduce(const Group& group, const TensorView& input, ReduceOp op, Callback callback = {});
  /// Every rank's result is all ranks' inputs, which must have the same shape, stacked along a new first dimension.
  Handle all_gather(const Group& group, const TensorView& input, Callback callback = {});

  /// Returns a writable tensor in the group's memory. reduce_scatter() does not copy it if tensors of one group and
  /// dtype are enqueued in the order in which they were made. Tensors share memory, which is released once all of them
  /// have been reduced or destroyed. Throws InvalidArgument unless the extent along dim 0 is divisible by the number of
  /// ranks.
  Tensor empty(const Group& group, DType dtype, const Shape& shape);

  /// Launches all open buckets, including those that callbacks open, and waits for all reductions. Leaves groups
  /// that have no other owner. Throws the first exception of a reduction or a callback since the last flush().
  void flush();
  /// Releases cached memory to the system; the next call allocates again. Throws InvalidArgument while work is pending.
  void teardown();
  BucketerStats stats() const;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace levada
