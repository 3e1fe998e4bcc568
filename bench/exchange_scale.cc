// Plans exchanges of very large jobs in one process, without moving data. Measures the time of each step on rank 0, and
// of the steps that every rank takes. Prints one JSON object. bench/README.md has the fields.
//
//   exchange_scale [RANKS [SAMPLES [all]]]     all: every rank gets every sample
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/percentile.h"
#include "bench/rounds.h"
#include "levada/base/deadline.h"
#include "levada/base/hash.h"
#include "levada/exchange/exchange_rows.h"
#include "levada/exchange/holdings.h"

namespace levada::bench {
namespace {

/// Returns the bytes that the process has allocated.
std::uint64_t in_use() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// Time and memory of named steps, in order, as JSON.
class Steps {
 public:
  /// Runs and measures `work`. Returns its result.
  template <typename Work>
  auto run(std::string_view name, Work work) {
    const auto begin = Clock::now();
    const std::uint64_t before = in_use();
    auto result = work();
    const std::chrono::duration<double> time = Clock::now() - begin;
    json_ += fmt::format(R"("{}_s":{:.3f},"{}_mb":{:.0f},)", name, time.count(), name,
                         (static_cast<double>(in_use()) - static_cast<double>(before)) / 1e6);
    return result;
  }
  void add(std::string_view name, double value) { json_ += fmt::format(R"("{}":{},)", name, value); }
  std::string json() const { return "{" + json_.substr(0, json_.size() - 1) + "}"; }

 private:
  std::string json_;
};

std::string id_of(std::size_t sample) {
  return fmt::format("sample-{:08}", sample);
}

const std::vector<std::string>& keys() {
  static const std::vector<std::string> all{"logprobs", "tokens", "values"};
  return all;
}

std::vector<Destination> to_all(int ranks, std::size_t samples) {
  Destination all;
  for (int rank = 0; rank < ranks; ++rank) all.ranks.push_back(rank);
  for (std::size_t i = 0; i < samples; ++i) all.ids.push_back(id_of(i));
  return {all};
}

/// Sends the samples, in an unrelated order, to half as many data-parallel ranks, each with two tensor-parallel ones.
std::vector<Destination> to_pairs(int ranks, std::size_t samples) {
  std::vector<Destination> all(static_cast<std::size_t>(ranks / 2));
  for (std::size_t d = 0; d < all.size(); ++d) all[d].ranks = {static_cast<int>(2 * d), static_cast<int>(2 * d + 1)};
  for (std::size_t i = 0; i < samples; ++i) {
    const std::string id = id_of(i);
    all[hash64(as_bytes(id), 7) % all.size()].ids.push_back(id);
  }
  return all;
}

/// Returns one rank's samples: every `ranks`th one, of short lengths, since nothing is moved.
SampleBatch batch_of(int rank, int ranks, std::size_t samples) {
  std::vector<std::string> ids;
  std::vector<std::int64_t> lengths;
  std::int64_t tokens = 0;
  for (auto i = static_cast<std::size_t>(rank); i < samples; i += static_cast<std::size_t>(ranks)) {
    ids.push_back(id_of(i));
    lengths.push_back(static_cast<std::int64_t>(1 + i % 3));
    tokens += lengths.back();
  }
  SampleBatch batch(std::move(ids));
  for (const std::string& key : keys()) {
    batch.set(key, Tensor::zeros(dtypes::uint8, {tokens}), Seqlens::one_each(lengths));
  }
  return batch;
}

std::string simulate(int ranks, std::size_t samples, bool everything_to_all) {
  Steps steps;
  steps.add("ranks", ranks);
  steps.add("samples", static_cast<double>(samples));
  const auto destinations = everything_to_all ? to_all : to_pairs;
  const ExchangeRequest request{steps.run("request", [&] { return destinations(ranks, samples); }), keys(), {}, false};
  const auto index = steps.run("index", [&] { return std::make_unique<SampleIndex>(request.destinations); });
  std::vector<Bytes> holdings;
  std::vector<double> times;
  std::uint64_t holdings_bytes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    SampleStore store;
    store.store_without_copy(batch_of(rank, ranks, samples));
    const auto begin = Clock::now();
    holdings.push_back(holdings_of(store, *index, keys()).bytes);
    times.push_back(microseconds(Clock::now() - begin));
    holdings_bytes += holdings.back().size();
  }
  steps.add("holdings_us", percentile(times, 0.5));
  steps.add("holdings_bytes", static_cast<double>(holdings_bytes) / ranks);
  auto table = steps.run("table", [&] {
    auto all = std::make_unique<HoldingsTable>(*index, keys());
    for (int rank = 0; rank < ranks; ++rank) all->add(rank, holdings[static_cast<std::size_t>(rank)]);
    return all;
  });
  const auto requested = table->requested();
  const SampleDirectory directory = std::move(*table).take();
  const ExchangePlan plan = steps.run("plan", [&] { return plan_exchange(directory, request, requested, {}); });
  steps.add("multicasts", static_cast<double>(plan.size()));
  const auto rows = steps.run("rows", [&] { return encode_rows(plan, ranks, false, {}, table->contents()); });
  times.clear();
  std::uint64_t rows_bytes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto begin = Clock::now();
    const Bytes& own = *rows[static_cast<std::size_t>(rank)];
    static_cast<void>(decode_rows(own, rank, ranks, index->size(), false));
    times.push_back(microseconds(Clock::now() - begin));
    rows_bytes += own.size();
  }
  steps.add("decode_rows_us", percentile(times, 0.5));
  steps.add("rows_bytes", static_cast<double>(rows_bytes) / ranks);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  steps.add("peak_mb", static_cast<double>(usage.ru_maxrss) * 1024 / 1e6);
  return steps.json();
}

}  // namespace
}  // namespace levada::bench

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 8192;
  const long samples = argc > 2 ? std::atol(argv[2]) : 10'000'000;
  const bool all = argc > 3 && std::string_view(argv[3]) == "all";
  if (ranks < 2 || samples < ranks || (argc > 3 && !all)) {
    std::cerr << "exchange_scale: give at least 2 ranks, at least as many samples, and perhaps \"all\"\n";
    return 2;
  }
  std::cout << levada::bench::simulate(ranks, static_cast<std::size_t>(samples), all) << '\n';
}
