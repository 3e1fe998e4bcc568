// A bucket of inputs that are reduced together, and its results.
#pragma once

#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "levada/reduce/bucketer.h"
#include "levada/reduce/reducer.h"
#include "levada/reduce/slab.h"

namespace levada {

/// The common properties of a bucket's inputs.
struct BucketKey {
  const Engine* group = nullptr;  ///< null: the group has been left
  ReduceOp op = ReduceOp::sum;
  DType dtype;
  bool operator==(const BucketKey&) const = default;
};

/// An input's properties, without its elements.
struct BucketInput {
  Collective collective = Collective::reduce_scatter;
  ReduceOp op = ReduceOp::sum;
  DType dtype = {};
  Shape piece = {};
  std::size_t bytes = 0;               ///< size of all pieces
  const TensorView* tensor = nullptr;  ///< possibly a tensor made by empty()
};

/// Inputs that are launched together. A bucket exists from the first enqueue until the last callback has run.
struct Bucketer::Bucket {
  struct Entry {
    Callback callback;
    Shape shape;  ///< shape of the result, which differs from the piece's for an all-reduce and an all-gather
  };
  const Engine* group = nullptr;
  int key = -1;
  DType dtype;
  CollectiveSpec spec;                       ///< only until launched
  std::vector<std::shared_ptr<Slab>> slabs;  ///< hold the inputs, only until launched
  std::uint64_t bytes = 0;                   ///< size of all inputs
  std::vector<Entry> entries;
  std::size_t num_called = 0;  ///< entries whose callbacks have run

  void launched(std::shared_future<Results> results) {
    results_ = std::move(results);
    is_launched_ = true;
  }
  /// Returns null until the bucket is launched. Any thread may call this and result().
  const std::shared_future<Results>* results() const { return is_launched_ ? &results_ : nullptr; }
  Tensor result(std::size_t position) const {
    const Results& results = results_.get();
    return Tensor(TensorView(dtype, entries[position].shape, results.data[position]), results.owner, true);
  }

 private:
  std::shared_future<Results> results_;
  std::atomic<bool> is_launched_ = false;
};

}  // namespace levada
