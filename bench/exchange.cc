#include "bench/exchange.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "bench/percentile.h"
#include "bench/rounds.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"

namespace levada::bench {
namespace {

/// Ragged samples of three keys, with 16 bytes per token in total.
class Workload {
 public:
  explicit Workload(const ExchangeBenchOptions& options)
      : from_(ModelRanks::from(Mesh::parse(options.from))), to_(ModelRanks::from(Mesh::parse(options.to))) {
    const auto count = static_cast<std::size_t>(options.samples);
    const auto mean = std::max<std::uint64_t>(1, options.bytes / 16 / count);
    for (std::size_t i = 0; i < count; ++i) {
      ids_.push_back(fmt::format("sample-{:07}", i));
      // Lengths are from half the mean to one and a half times the mean.
      lengths_.push_back(static_cast<std::int64_t>(mean / 2 + hash64(as_bytes(ids_.back())) % (mean + 1)));
    }
    request_ = {destinations_of(to_, dealt(to_.mesh.axis_size("dp"), 7)), {"tokens", "logprobs", "values"}};
  }

  const std::vector<std::string>& ids() const { return ids_; }
  const ExchangeRequest& request() const { return request_; }
  std::uint64_t payload_bytes() const {
    return 16 * static_cast<std::uint64_t>(std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0}));
  }

  /// Returns the samples of the first mesh's data-parallel heads, by rank.
  std::vector<std::pair<int, std::vector<std::size_t>>> held() const {
    std::vector<std::pair<int, std::vector<std::size_t>>> held;
    const auto heads = data_heads(from_);
    for (std::size_t d = 0; d < heads.size(); ++d) {
      auto& samples = held.emplace_back(heads[d], std::vector<std::size_t>{}).second;
      for (std::size_t i = d; i < ids_.size(); i += heads.size()) samples.push_back(i);
    }
    return held;
  }

  SampleBatch meta(const std::vector<std::size_t>& samples) const {
    std::vector<std::string> ids;
    std::vector<std::int64_t> lengths;
    for (const std::size_t i : samples) {
      ids.push_back(ids_[i]);
      lengths.push_back(lengths_[i]);
    }
    SampleBatch batch(std::move(ids));
    batch.set({"tokens", dtypes::int64, {}}, Seqlens::one_each(lengths));
    for (const char* key : {"logprobs", "values"}) batch.set({key, dtypes::float32, {}}, Seqlens::one_each(lengths));
    return batch;
  }

  /// Returns samples with data: every byte of a sample's key follows from its id.
  SampleBatch made(const std::vector<std::size_t>& samples) const {
    SampleBatch batch = meta(samples);
    for (const std::string& name : batch.keys()) {
      const Seqlens seqlens = batch.seqlens(name);
      Tensor packed = Tensor::empty(batch.key(name).dtype, {total(seqlens)});
      std::byte* to = packed.mutable_bytes().data();
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const auto bytes = *batch.key(name).bytes(seqlens.total(i));
        std::fill_n(to, bytes, static_cast<std::byte>(hash64(as_bytes(batch.ids()[i] + name))));
        to += bytes;
      }
      batch.set(name, packed, seqlens);
    }
    return batch;
  }

 private:
  static std::int64_t total(const Seqlens& seqlens) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < seqlens.size(); ++i) sum += seqlens.total(i);
    return sum;
  }
  /// Deals the samples in an unrelated order, so that every rank receives from every other.
  std::vector<std::vector<std::string>> dealt(int groups, std::uint64_t seed) const {
    std::vector<std::vector<std::string>> lists(static_cast<std::size_t>(groups));
    for (const std::string& id : ids_) lists[hash64(as_bytes(id), seed) % lists.size()].push_back(id);
    return lists;
  }

  ModelRanks from_, to_;
  std::vector<std::string> ids_;
  std::vector<std::int64_t> lengths_;
  ExchangeRequest request_;
};

/// Returns the median time in which one core copies `bytes`, in microseconds.
double time_memcpy(std::uint64_t bytes) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes, std::byte{2});
  std::vector<double> times;
  for (int round = 0; round < 11; ++round) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    asm volatile("" : : "r"(to.data()) : "memory");
    times.push_back(microseconds(Clock::now() - begin));
  }
  return percentile(times, 0.5);
}

void check_samples(const SampleStore& store, const Workload& workload, int rank) {
  std::vector<std::size_t> all(workload.ids().size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const SampleBatch expected = workload.made(all);
  for (const Destination& destination : workload.request().destinations) {
    if (std::ranges::find(destination.ranks, rank) == destination.ranks.end() || destination.ids.empty()) continue;
    if (store.get(destination.ids) == expected.select_ids(destination.ids)) continue;
    throw EngineError(fmt::format("rank {} has other bytes than were made", rank));
  }
}

/// The measured times of this rank, and the result of the last round.
struct Rounds {
  std::vector<double> total_us, repeated_us, agree_us, plan_us, move_us;
  ExchangeResult last;
};

/// Exchanges the same samples again and again; receivers drop them between rounds. Each exchange is planned once and
/// then repeated.
Rounds run_rounds(const std::shared_ptr<Engine>& engine, const Workload& workload,
                  const ExchangeBenchOptions& options) {
  const int rank = engine->info().rank;
  Exchange exchange(engine);
  SampleStore store;
  if (engine->shares_memory()) store.use_memory_of(engine);  // where received samples are stored, too
  for (const auto& [holder, samples] : workload.held()) {
    if (holder == rank) store.store(workload.made(samples));
  }
  const std::vector<std::string> own = store.ids();
  Rounds rounds;
  ExchangeRequest request = workload.request();
  for (int round = 0; round < 2 * (options.warm_up + options.rounds); ++round) {
    const bool is_repeated = round % 2 == 1;
    if (!is_repeated) request.allow_absent = !request.allow_absent;  // a different request that has the same plan
    std::vector<std::string> received;
    std::ranges::set_difference(store.ids(), own, std::back_inserter(received));
    store.remove(received);
    meet(*engine);
    const auto begin = Clock::now();
    ExchangeResult done = exchange.redistribute(store, request);
    const auto time = microseconds(Clock::now() - begin);
    if (round == 0) check_samples(store, workload, rank);
    if (round < 2 * options.warm_up) continue;
    if (is_repeated) {
      rounds.repeated_us.push_back(time);
      continue;
    }
    rounds.total_us.push_back(time);
    rounds.agree_us.push_back(microseconds(done.agree_time));
    rounds.plan_us.push_back(microseconds(done.plan_time));
    rounds.move_us.push_back(microseconds(done.move_time));
    rounds.last = std::move(done);
  }
  check_samples(store, workload, rank);
  return rounds;
}

/// Returns the sum of all ranks' values. Collective.
std::uint64_t sum_of_all(Engine& engine, std::uint64_t own) {
  std::uint64_t sum = 0;
  ByteWriter writer;
  writer.put(own);
  for (const Bytes& bytes : meet(engine, writer.view())) sum += ByteReader(bytes).get<std::uint64_t>();
  return sum;
}

}  // namespace

void check(const ExchangeBenchOptions& options) {
  static_cast<void>(ranks_of(options));
  if (options.samples < 1) throw InvalidArgument(fmt::format("samples is {}; give at least 1", options.samples));
  if (options.rounds < 2) throw InvalidArgument(fmt::format("rounds is {}; give at least 2", options.rounds));
}

int ranks_of(const ExchangeBenchOptions& options) {
  return std::max(Mesh::parse(options.from).size(), Mesh::parse(options.to).size());
}

PlanBenchResult measure_plan(const ExchangeBenchOptions& options) {
  check(options);
  const Workload workload(options);
  SampleDirectory directory;
  for (const auto& [rank, samples] : workload.held()) directory.add(rank, workload.meta(samples));
  PlanBenchResult result{.payload_bytes = workload.payload_bytes()};
  std::vector<double> times;
  for (int round = 0; round < options.rounds; ++round) {
    const auto begin = Clock::now();
    const auto plan = plan_exchange(directory, workload.request());
    times.push_back(microseconds(Clock::now() - begin) / 1e3);
    result.moved_bytes = plan.moved_bytes();
    result.lower_bound_bytes = plan.lower_bound_bytes();
    result.multicasts = plan.size();
  }
  result.median_ms = percentile(times, 0.5);
  result.p99_ms = percentile(times, 0.99);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  result.peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  return result;
}

ExchangeBenchResult measure(const std::shared_ptr<Engine>& engine, const ExchangeBenchOptions& options) {
  check(options);
  if (engine->info().size < ranks_of(options)) {
    throw InvalidArgument(
        fmt::format("the meshes take {} ranks, but there are {}", ranks_of(options), engine->info().size));
  }
  const Workload workload(options);
  const Rounds rounds = run_rounds(engine, workload, options);
  const ExchangeResult& last = rounds.last;
  const std::vector<double> total_us = slowest(*engine, rounds.total_us);
  const std::vector<double> repeated_us = slowest(*engine, rounds.repeated_us);
  ExchangeBenchResult result{.payload_bytes = workload.payload_bytes()};
  result.moved_bytes = last.moved_bytes;
  result.lower_bound_bytes = last.lower_bound_bytes;
  result.messages = sum_of_all(*engine, last.sent_messages);
  result.wire_bytes = sum_of_all(*engine, last.sent_bytes + last.agreed_bytes);
  result.median_us = percentile(total_us, 0.5);
  result.p99_us = percentile(total_us, 0.99);
  result.repeated_us = percentile(repeated_us, 0.5);
  result.agree_us = percentile(rounds.agree_us, 0.5);
  result.plan_ms = percentile(rounds.plan_us, 0.5) / 1e3;
  result.move_us = percentile(rounds.move_us, 0.5);
  if (engine->info().rank == 0) result.memcpy_us = time_memcpy(result.moved_bytes);
  return result;
}

}  // namespace levada::bench
