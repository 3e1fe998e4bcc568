// Compares results with a plain sum in double of each input, for any inputs, any order and any engine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "levada/base/fault_testing.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/p2p/in_process_transport_testing.h"
#include "levada/reduce/bucketer.h"

namespace levada {
namespace {

using Handle = std::shared_ptr<Engine>;

/// Returns a number as `dtype` stores it. Exact for whole numbers up to 256.
std::uint64_t bits_of(DType dtype, double value) {
  const auto single = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (dtype == dtypes::float64) return std::bit_cast<std::uint64_t>(value);
  if (dtype == dtypes::float32) return single;
  if (dtype == dtypes::bfloat16) return single >> 16;
  if (dtype != dtypes::float16) return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  if (value == 0) return 0;
  if (std::isnan(value)) return 0x7E00;
  if (std::isinf(value)) return value < 0 ? 0xFC00 : 0x7C00;
  const int exponent = std::ilogb(value);
  return static_cast<std::uint64_t>((exponent + 15) << 10) +
         static_cast<std::uint64_t>((std::ldexp(value, -exponent) - 1) * 1024);
}

double value_of(DType dtype, std::uint64_t bits) {
  if (dtype == dtypes::float64) return std::bit_cast<double>(bits);
  if (dtype == dtypes::float32) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  if (dtype == dtypes::bfloat16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits << 16));
  if (dtype != dtypes::float16) return static_cast<double>(bits);
  const auto exponent = static_cast<int>(bits >> 10 & 31);
  const auto fraction = static_cast<double>(bits & 1023);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1 + fraction / 1024, exponent - 15));
}

double element(const Tensor& tensor, std::size_t i) {
  std::uint64_t bits = 0;
  const std::size_t size = tensor.dtype().bytes(1);
  std::memcpy(&bits, tensor.bytes().data() + i * size, size);
  return value_of(tensor.dtype(), bits);
}

void set_element(Tensor& tensor, std::size_t i, double value) {
  const std::uint64_t bits = bits_of(tensor.dtype(), value);
  const std::size_t size = tensor.dtype().bytes(1);
  std::memcpy(tensor.mutable_bytes().data() + i * size, &bits, size);
}

/// Returns rank `from`'s element i of the whole input n: a small whole number.
double given(int n, int from, std::size_t i) {
  return static_cast<double>((static_cast<std::size_t>(n * 31 + from * 7) + i % 1000 + i / 1000) % 16);
}

/// The inputs that are enqueued, the same on all ranks of a group.
struct Case {
  DType dtype;
  Shape shape;  ///< shape of a piece
  ReduceOp op = ReduceOp::sum;
  enum class Mode { list, strided_list, flat, padded, placed } mode = Mode::list;
};

Shape whole_of(const Case& what, int ranks) {
  Shape whole = what.shape;
  whole[0] *= ranks;
  return whole;
}

bool is_padded(const Case& what, int ranks) {
  return what.mode == Case::Mode::padded && ranks > 1 && what.shape[0] > 0;
}

Case draw(std::mt19937 random) {
  static constexpr DType all[] = {dtypes::float16, dtypes::bfloat16, dtypes::float32, dtypes::float64, dtypes::int8,
                                  dtypes::uint8,   dtypes::int16,    dtypes::int32,   dtypes::int64};
  static constexpr std::int64_t extents[] = {0, 1, 2, 7, 64, 300, 4096};
  Case drawn{.dtype = all[random() % std::size(all)], .shape = {}};
  const auto rank = random() % 4;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    drawn.shape.push_back(dim == 0 ? extents[random() % std::size(extents)] : static_cast<std::int64_t>(random() % 4));
  }
  if (drawn.dtype.code == dtypes::float32.code || drawn.dtype.code == dtypes::bfloat16.code) {
    drawn.op = random() % 2 == 0 ? ReduceOp::sum : ReduceOp::average;
  }
  if (rank > 0) drawn.mode = static_cast<Case::Mode>(random() % 5);
  return drawn;
}

/// Returns the whole input of a rank, contiguous.
Tensor whole_input(const Case& what, int n, int rank, const Shape& shape, Tensor to = {}) {
  if (to.owner() == nullptr) to = Tensor::empty(what.dtype, shape);
  for (std::size_t i = 0; i < to.view().element_count(); ++i) set_element(to, i, given(n, rank, i));
  return to;
}

Bucketer::Handle enqueue(Bucketer& bucketer, const Handle& group, const Case& what, int n,
                         Bucketer::Callback callback) {
  const int ranks = group->info().size;
  const int rank = group->info().rank;
  if (what.mode == Case::Mode::list || what.mode == Case::Mode::strided_list) {
    Shape stacked{ranks};
    for (const std::int64_t extent : what.shape) stacked.push_back(extent);
    const Tensor all = whole_input(what, n, rank, stacked);
    const std::size_t bytes = all.bytes().size() / static_cast<std::size_t>(ranks);
    std::vector<Tensor> kept;
    std::vector<TensorView> pieces;
    for (int to = 0; to < ranks; ++to) {
      const TensorView piece(what.dtype, what.shape, all.bytes().data() + static_cast<std::size_t>(to) * bytes);
      pieces.push_back(piece);
      if (what.mode == Case::Mode::list) continue;
      // The same elements, two apart in memory.
      kept.push_back(Tensor::zeros(what.dtype, {static_cast<std::int64_t>(2 * piece.element_count() + 1)}));
      const std::size_t size = what.dtype.bytes(1);
      for (std::size_t i = 0; i < piece.element_count(); ++i) {
        std::memcpy(kept.back().mutable_bytes().data() + 2 * i * size, piece.data() + i * size, size);
      }
      Shape strides = what.shape.contiguous_strides();
      for (std::size_t dim = 0; dim < strides.rank(); ++dim) strides[dim] *= 2;
      pieces.back() = TensorView(what.dtype, what.shape, strides, kept.back().bytes().data());
    }
    return bucketer.reduce_scatter(group, pieces, what.op, std::move(callback));
  }
  Shape whole = whole_of(what, ranks);
  if (is_padded(what, ranks)) --whole[0];
  Tensor to = what.mode == Case::Mode::placed ? bucketer.empty(group, what.dtype, whole) : Tensor();
  return bucketer.reduce_scatter(group, whole_input(what, n, rank, whole, std::move(to)), what.op, std::move(callback));
}

std::string wrong(const Engine& group, const Case& what, int n, const Tensor& result) {
  const int ranks = group.info().size;
  if (result.shape() != what.shape || result.dtype() != what.dtype) return "a different shape or dtype";
  const std::size_t count = result.view().element_count();
  std::size_t real = count * static_cast<std::size_t>(ranks);
  if (is_padded(what, ranks)) real -= count / static_cast<std::size_t>(what.shape[0]);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = static_cast<std::size_t>(group.info().rank) * count + i;
    double sum = 0;
    for (int from = 0; from < ranks && at < real; ++from) sum += given(n, from, at);
    if (what.op == ReduceOp::average) sum /= ranks;
    const int fraction = what.dtype == dtypes::bfloat16 ? 8 : what.dtype == dtypes::float16 ? 11 : 24;
    const double rounding = what.op == ReduceOp::average ? std::ldexp(sum, -fraction) : 0;
    if (std::abs(element(result, i) - sum) <= rounding) continue;
    return fmt::format("input {}, {} {}, element {} is {}, not {}", n, what.dtype.name(), what.shape.to_string(), i,
                       element(result, i), sum);
  }
  return {};
}

struct MemberOf {
  Handle engine;
  unsigned number = 0;  ///< the same on all ranks of the group
};

/// Returns the groups of this rank: all ranks, and pairs of neighbors, which overlap.
std::vector<MemberOf> groups_of(const Handle& engine) {
  std::vector<MemberOf> groups = {{engine, 0}};
  const int ranks = engine->info().size;
  for (int first = 0; first < ranks && ranks > 2; ++first) {
    const int pair[] = {first, (first + 1) % ranks};
    if (engine->info().rank != pair[0] && engine->info().rank != pair[1]) continue;
    groups.push_back({engine->subgroup(pair, "pair"), 1 + static_cast<unsigned>(first)});
  }
  return groups;
}

/// Enqueues, waits and flushes at random, alike on all ranks of a group, and checks each result twice.
class RandomPlayer {
 public:
  RandomPlayer(const Handle& engine, unsigned seed, const BucketerOptions& options)
      : seed_(seed), groups_(groups_of(engine)), bucketer_(options) {}

  void play() {
    std::mt19937 random(seed_);
    for (int n = 0; n < 60; ++n) {
      for (const MemberOf& group : groups_) add(group, n);
      const auto chance = random() % 60;
      if (chance < 6) later_[static_cast<std::size_t>(n) / 2 * groups_.size()]();  // in the group of all ranks
      else if (chance < 10) bucketer_.flush();
      else if (chance < 12) bucketer_.flush(), bucketer_.teardown();
    }
    bucketer_.flush();
    for (const auto& each : later_) each();
    EXPECT_EQ(called_, static_cast<int>(later_.size()));
    EXPECT_EQ(faults_.size(), 0U) << faults_.front();
  }

 private:
  void add(const MemberOf& group, int n) {
    const Case what = draw(std::mt19937(seed_ * 10'000 + static_cast<unsigned>(n) * 100 + group.number));
    const auto judge = [this, group, what, n](const Tensor& result) {
      const std::string fault = wrong(*group.engine, what, n, result);
      if (!fault.empty()) faults_.push_back(fault);
    };
    const auto handle = enqueue(bucketer_, group.engine, what, n, [this, judge](const Tensor& result) {
      judge(result);
      ++called_;
    });
    later_.emplace_back([judge, handle] { judge(handle.wait()); });
  }

  unsigned seed_;
  std::vector<MemberOf> groups_;
  Bucketer bucketer_;
  std::vector<std::function<void()>> later_;
  std::vector<std::string> faults_;
  int called_ = 0;
};

void reduces_like_a_plain_sum(const Handle& engine, unsigned seed) {
  static constexpr std::int64_t capacities[] = {-1, 0, 1000, 65536, std::int64_t{1} << 18, std::int64_t{25} << 20};
  RandomPlayer(engine, seed,
               {.capacity = capacities[seed % std::size(capacities)], .in_flight = 1 + static_cast<int>(seed % 3)})
      .play();
  agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test");
}

TEST(BucketerProperty, ReducesLikeAPlainSumOverThreads) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      inproc::run_ranks(ranks, [&](const Handle& engine) { reduces_like_a_plain_sum(engine, seed); });
    }
  }
}

TEST(BucketerProperty, ReducesLikeAPlainSumOverMessages) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (unsigned seed = 10; seed < 13; ++seed) {
      EXPECT_EQ(p2p::test::run_ranks(ranks, [&](const Handle& e) { reduces_like_a_plain_sum(e, seed); }), "");
    }
  }
}

TEST(BucketerProperty, PropagatesInfinityAndNaN) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double rows[2][4] = {{1, infinity, infinity, std::nan("")}, {2, 1, -infinity, 1}};
  for (const DType dtype : {dtypes::float16, dtypes::bfloat16, dtypes::float32, dtypes::float64}) {
    inproc::run_ranks(2, [&](const Handle& engine) {
      Bucketer bucketer;
      Tensor whole = Tensor::zeros(dtype, {8});
      for (std::size_t i = 0; i < 8; ++i) set_element(whole, i, rows[engine->info().rank][i % 4]);
      const Tensor result = bucketer.reduce_scatter(engine, whole, ReduceOp::sum).wait();
      EXPECT_EQ(element(result, 0), 3);
      EXPECT_EQ(element(result, 1), infinity);
      EXPECT_TRUE(std::isnan(element(result, 2)));
      EXPECT_TRUE(std::isnan(element(result, 3)));
    });
  }
}

}  // namespace
}  // namespace levada
