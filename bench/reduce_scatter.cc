#include "bench/reduce_scatter.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <numeric>

#include "bench/percentile.h"
#include "bench/rounds.h"
#include "levada/base/error.h"
#include "levada/reduce/bucketer.h"

namespace levada::bench {
namespace {

constexpr std::size_t most_inputs = 1'000'000;

/// Parses a size such as "4096", "4KiB", "256KiB" or "1MiB".
std::int64_t parse_bytes(std::string_view text, std::string_view whole) {
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  const int shift = unit.empty() ? 0 : unit == "KiB" ? 10 : unit == "MiB" ? 20 : -1;
  if (error != std::errc() || shift < 0 || number < 0 || number > std::int64_t{1} << 40 >> shift) {
    throw InvalidArgument(fmt::format("--sizes: {:.60} is neither sizes, such as 256x4KiB, nor a file of them", whole));
  }
  return number << shift;
}

std::vector<std::int64_t> read_sizes(std::ifstream& file, const std::string& path) {
  std::vector<std::int64_t> sizes;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) sizes.push_back(parse_bytes(line, fmt::format("{} of {}", line, path)));
    if (sizes.size() > most_inputs) throw InvalidArgument(fmt::format("{} has more than {} lines", path, most_inputs));
  }
  return sizes;
}

class Bench {
 public:
  Bench(const std::shared_ptr<Engine>& engine, const ReduceOptions& options)
      : engine_(engine),
        options_(options),
        ranks_(engine->info().size),
        bucketer_({.capacity = static_cast<std::int64_t>(options.capacity_mb * 1048576), .name = "in buckets"}),
        alone_({.capacity = 0, .name = "alone"}) {
    for (const std::int64_t shard : options_.shards) all_ += shard;
    for (const std::int64_t shard : options_.shards)
      own_.push_back(filled(Tensor::empty(dtypes::float32, shape(shard))));
    large_ = filled(Tensor::empty(dtypes::float32, shape(all_)));
  }

  ReduceResult run() {
    std::vector<double> buckets, large, copies, sums;
    for (int round = 0; round < options_.warm_up + options_.rounds; ++round) {
      if (round == options_.warm_up) flushes_before_ = bucketer_.stats().buckets + bucketer_.stats().alone;
      const double one = reduce_large();
      const double many = reduce_many();
      const double copy = copy_all();
      const double sum = sum_alone();
      if (round < options_.warm_up) continue;
      buckets.push_back(many);
      large.push_back(one);
      copies.push_back(copy);
      sums.push_back(sum);
    }
    const auto bytes = static_cast<double>(all_ * ranks_);
    ReduceResult result{.bytes = static_cast<std::uint64_t>(all_ * ranks_),
                        .median_us = percentile(buckets, 0.5),
                        .p99_us = percentile(buckets, 0.99),
                        .one_large_us = percentile(large, 0.5),
                        .memcpy_gb_s = bytes / percentile(copies, 0.5) / 1e3,
                        // Each rank's input is read once, and the sum is written once.
                        .sum_gb_s = static_cast<double>(all_ * (ranks_ + 1)) / percentile(sums, 0.5) / 1e3};
    const auto flushes = bucketer_.stats().buckets + bucketer_.stats().alone - flushes_before_;
    result.flushes = static_cast<double>(flushes) / options_.rounds;
    return result;
  }

 private:
  Shape shape(std::int64_t shard) const { return {shard / 4 * ranks_}; }

  Tensor filled(Tensor tensor) const {
    auto values = tensor.mutable_as<float>();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(i);
    return tensor;
  }
  float value(std::size_t i) const {
    return static_cast<float>(i % 251 + static_cast<std::size_t>(engine_->info().rank));
  }

  /// Runs `work` on all ranks together. Returns the slowest rank's time, in microseconds.
  template <typename Work>
  double timed(Work work) {
    meet(*engine_);
    const auto begin = Clock::now();
    work();
    const double own = microseconds(Clock::now() - begin);
    return slowest(*engine_, {&own, 1}).front();
  }

  std::vector<Tensor> inputs() {
    if (options_.source == BatchSource::host) return own_;
    std::vector<Tensor> made;
    for (const std::int64_t shard : options_.shards) {
      made.push_back(filled(bucketer_.empty(engine_, dtypes::float32, shape(shard))));
    }
    return made;
  }

  double reduce_many() {
    const std::vector<Tensor> ready = inputs();
    std::vector<Bucketer::Handle> handles;
    handles.reserve(ready.size());
    const double us = timed([&] {
      for (const Tensor& input : ready) handles.push_back(bucketer_.reduce_scatter(engine_, input, ReduceOp::sum));
      bucketer_.flush();
    });
    for (std::size_t i = 0; i < handles.size(); ++i) expect_sum(handles[i].wait(), options_.shards[i]);
    return us;
  }

  double reduce_large() {
    const Tensor input =
        options_.source == BatchSource::host ? large_ : filled(alone_.empty(engine_, dtypes::float32, shape(all_)));
    return timed([&] {
      alone_.reduce_scatter(engine_, input, ReduceOp::sum);
      alone_.flush();
    });
  }

  double copy_all() {
    if (copied_.empty()) copied_.resize(large_.bytes().size());
    return timed([&] { std::memcpy(copied_.data(), large_.bytes().data(), copied_.size()); });
  }

  double sum_alone() {
    if (summed_.owner() == nullptr) summed_ = Tensor::zeros(dtypes::float32, {all_ / 4});
    std::vector<const std::byte*> pieces;
    for (int r = 0; r < ranks_; ++r) pieces.push_back(large_.bytes().data() + static_cast<std::int64_t>(r) * all_);
    return timed([&] {
      add_arrays(dtypes::float32, pieces, static_cast<std::size_t>(all_ / 4), dtypes::float32,
                 summed_.mutable_bytes().data());
    });
  }

  void expect_sum(const Tensor& result, std::int64_t shard) const {
    const auto values = result.as<float>();
    const auto first = static_cast<std::size_t>(shard / 4) * static_cast<std::size_t>(engine_->info().rank);
    for (std::size_t i = 0; i < values.size(); i += 1 + values.size() / 16) {
      const std::int64_t sum = ranks_ * static_cast<std::int64_t>((first + i) % 251) + ranks_ * (ranks_ - 1) / 2;
      const auto expected = static_cast<float>(sum);
      if (values[i] != expected) {
        throw EngineError(fmt::format("element {} of a sum is {}, not {}", i, values[i], expected));
      }
    }
  }

  std::shared_ptr<Engine> engine_;
  ReduceOptions options_;
  std::int64_t ranks_;
  Bucketer bucketer_, alone_;
  std::int64_t all_ = 0;  ///< total size of one rank's pieces
  std::vector<Tensor> own_;
  Tensor large_, summed_;
  std::vector<std::byte> copied_;
  std::int64_t flushes_before_ = 0;
};

}  // namespace

std::vector<std::int64_t> parse_sizes(const std::string& text) {
  if (std::ifstream file(text); file) return read_sizes(file, text);
  std::vector<std::int64_t> sizes;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, end - at);
    const std::size_t times = part.find('x');
    const auto count = times == std::string_view::npos ? 1 : parse_bytes(part.substr(0, times), text);
    const auto bytes = parse_bytes(part.substr(times == std::string_view::npos ? 0 : times + 1), text);
    if (static_cast<std::uint64_t>(count) > most_inputs - std::min(most_inputs, sizes.size())) {
      throw InvalidArgument(fmt::format("--sizes: {:.60} are more than {} inputs", text, most_inputs));
    }
    sizes.insert(sizes.end(), static_cast<std::size_t>(count), bytes);
    at = end + 1;
  }
  return sizes;
}

void check(const ReduceOptions& options) {
  if (options.shards.empty()) throw InvalidArgument("--sizes names no input");
  for (const std::int64_t shard : options.shards) {
    if (shard % 4 != 0) throw InvalidArgument(fmt::format("--sizes: {} bytes are no whole numbers of 4 bytes", shard));
  }
  if (std::accumulate(options.shards.begin(), options.shards.end(), std::int64_t{0}) == 0) {
    throw InvalidArgument("--sizes: all inputs together have no bytes");
  }
  if (options.rounds < 1) throw InvalidArgument(fmt::format("--rounds is {}; it must be at least 1", options.rounds));
  if (!(options.capacity_mb >= 0 && options.capacity_mb <= 1 << 20)) {
    throw InvalidArgument(fmt::format("--cap-mb is {}; it must be from 0 to {}", options.capacity_mb, 1 << 20));
  }
}

ReduceResult measure(const std::shared_ptr<Engine>& engine, const ReduceOptions& options) {
  return Bench(engine, options).run();
}

}  // namespace levada::bench
