// Measures how long planning takes for large jobs.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "levada/plan/plan.h"
#include "levada/plan/step_plan.h"

namespace {

/// `stages` is the extent of pp: of eight stages, six want nothing; a single one wants everything.
levada::Mesh mesh_of(std::int64_t ranks, int stages) {
  const auto dp = static_cast<int>(ranks / 16 / stages);
  return levada::Mesh({{"dp", dp}, {"cp", 2}, {"tp", 8}, {"pp", stages}});
}

/// Returns the fields of a batch of two samples for each of `shares` ranks along dp.
std::vector<levada::Field> fields_of(std::int64_t shares) {
  const levada::Shape shape{2 * shares, 4096};
  return {{"tokens", levada::dtypes::int64, shape},
          {"labels", levada::dtypes::int64, shape},
          {"loss_mask", levada::dtypes::float32, shape},
          {"position_ids", levada::dtypes::int64, shape}};
}

struct Job {
  levada::Mesh mesh;
  levada::Layout layout = levada::layouts::gpt();
  levada::FanOutOptions options = {};
  std::vector<levada::Field> fields;
};

Job job_of(std::int64_t ranks, const std::string& readers, levada::Divide divide, int stages = 8) {
  Job job;
  job.mesh = mesh_of(ranks, stages);
  job.options.readers = levada::Readers::parse(readers);
  job.options.divide = divide;
  job.fields = fields_of(divide == levada::Divide::split ? job.mesh.axis_size("dp") : 1);
  return job;
}

void count(benchmark::State& state, const Job& job, const levada::Plan& plan) {
  state.counters["ranks"] = job.mesh.size();
  state.counters["audiences"] = static_cast<double>(plan.audiences.size());
  state.counters["moves"] = static_cast<double>(plan.moves.size());
}

/// Makes the whole plan, as `levada plan` does.
void whole_plan(benchmark::State& state, const std::string& readers, levada::Divide divide, int stages) {
  const Job job = job_of(state.range(0), readers, divide, stages);
  std::optional<levada::Plan> plan;
  for (auto _ : state) {
    plan.reset();
    plan = levada::plan_fan_out(job.fields, job.layout, job.mesh, job.options);
    benchmark::DoNotOptimize(plan->moves.data());
  }
  count(state, job, *plan);
}

/// Plans as a feed with one reader does at its start: first the audiences, then the moves of each unit.
void unit_by_unit(benchmark::State& state) {
  const Job job = job_of(state.range(0), "one", levada::Divide::deal);
  for (auto _ : state) {
    const auto audiences = levada::fan_out_audiences(job.layout, job.mesh, job.options);
    for (int unit = 0; unit < job.mesh.axis_size("dp"); ++unit) {
      const auto own = levada::audiences_of(audiences, 0, unit);
      benchmark::DoNotOptimize(levada::plan_unit(job.fields, job.layout, job.mesh, own, job.options));
    }
  }
}

/// Plans as a feed does when a batch has another shape.
void one_unit(benchmark::State& state) {
  const Job job = job_of(state.range(0), "one", levada::Divide::deal);
  const auto audiences = levada::fan_out_audiences(job.layout, job.mesh, job.options);
  for (auto _ : state) {
    const auto own = levada::audiences_of(audiences, 0, 3);
    benchmark::DoNotOptimize(levada::plan_unit(job.fields, job.layout, job.mesh, own, job.options));
  }
}

void copy_zigzag(benchmark::State& state) {
  const levada::Tensor batch = levada::Tensor::zeros(levada::dtypes::int64, {64, 4096});
  levada::Region region(batch.shape());
  region.keep_zigzag(1, 0, 2);
  std::vector<std::byte> to(region.element_count() * 8);
  for (auto _ : state) {
    levada::copy_region(batch, region, to.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(to.size()) * state.iterations());
}

void copy_contiguous(benchmark::State& state) {
  const levada::Tensor batch = levada::Tensor::zeros(levada::dtypes::int64, {64, 2048});
  std::vector<std::byte> to(batch.view().byte_count());
  for (auto _ : state) {
    levada::copy_region(batch, levada::Region(batch.shape()), to.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(to.size()) * state.iterations());
}

/// Plans documents of lognormal length, cut at 32,768 tokens or at the capacity of a micro-batch, over ranks.
void plan_step(benchmark::State& state, levada::PartSizes sizes, std::int64_t max_tokens) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> lengths(std::log(1500.0) - 0.72, 1.2);
  const double longest = max_tokens == 0 ? 32768 : static_cast<double>(max_tokens);
  std::vector<levada::SampleSize> samples(static_cast<std::size_t>(state.range(0)));
  for (auto& sample : samples) {
    sample.tokens = static_cast<std::int64_t>(std::clamp(lengths(random), 1.0, longest));
    sample.squares = sample.tokens * sample.tokens;
  }
  const levada::Balance options{.cost = levada::SampleCost::parse("flops"), .sizes = sizes, .max_tokens = max_tokens};
  for (auto _ : state) benchmark::DoNotOptimize(levada::plan_step(samples, static_cast<int>(state.range(1)), options));
}

}  // namespace

BENCHMARK_CAPTURE(whole_plan, one_deal, "one", levada::Divide::deal, 8)
    ->Arg(4096)
    ->Arg(65536)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_plan, one_split, "one", levada::Divide::split, 8)
    ->Arg(4096)
    ->Arg(65536)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_plan, all_deal, "all", levada::Divide::deal, 8)
    ->Arg(4096)
    ->Arg(65536)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_plan, all_split, "all", levada::Divide::split, 8)
    ->Arg(4096)
    ->Arg(65536)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_plan, all_deal_one_stage, "all", levada::Divide::deal, 1)
    ->Arg(4096)
    ->Arg(65536)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_plan, all_split_one_stage, "all", levada::Divide::split, 1)
    ->Arg(4096)
    ->Arg(65536)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(unit_by_unit)->Arg(4096)->Arg(65536)->Unit(benchmark::kMillisecond);
BENCHMARK(one_unit)->Arg(4096)->Arg(65536)->Unit(benchmark::kMicrosecond);
BENCHMARK(copy_zigzag)->Unit(benchmark::kMicrosecond);
BENCHMARK(copy_contiguous)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, any, levada::PartSizes::any, 0)
    ->Args({256, 8})
    ->Args({4096, 64})
    ->Args({4096, 512})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, equal, levada::PartSizes::equal, 0)
    ->Args({256, 8})
    ->Args({4096, 64})
    ->Args({4096, 512})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, micro_batches, levada::PartSizes::any, 8192)
    ->Args({256, 8})
    ->Args({4096, 64})
    ->Args({4096, 512})
    ->Unit(benchmark::kMicrosecond);

BENCHMARK_MAIN();
