// mpi_job CASE [ENGINE [CONTAINS]]: the program that tests/test_mpi_hosts.py starts with mpirun, on one host or
// several. It waits for the files that the environment names: MPI_JOB_BEGIN between MPI_Init and joining, and
// MPI_JOB_END before it exits after an error, since mpirun would then end the other ranks.
#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "levada/cli/feed_history.h"
#include "levada/engine/choice.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/mpi/mpi.h"
#include "levada/exchange/exchange_testing.h"
#include "levada/feed/feed.h"
#include "levada/pipeline/item_sources.h"
#include "levada/pipeline/open_context.h"
#include "levada/pipeline/open_graph.h"
#include "levada/pipeline/pipeline_source.h"
#include "levada/pipeline/tree_item_traits.h"
#include "levada/reduce/bucketer.h"

namespace {

using levada::Engine;
namespace pipeline = levada::pipeline;

levada::Deadline limit() {
  return levada::Deadline::after(std::chrono::seconds(60));
}

void print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void expect(bool holds, const std::string& sentence) {
  if (!holds) throw std::runtime_error(sentence);
}

/// Waits until the file that this variable names exists, if the variable is set.
void await_file(const char* variable) {
  const char* const path = std::getenv(variable);
  const auto deadline = limit();
  while (path != nullptr && !std::filesystem::exists(path) && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

/// Runs every case of the engine contract for this number of ranks whose name contains `only`, each with a new engine.
int check_conformance(const std::string& name, const std::string& only) {
  // One case never closes a channel.
  levada::mpi::Communicator communicator(MPI_COMM_WORLD, {.engine = name, .leave_timeout = std::chrono::seconds(2)});
  int rank = 0, size = 0, num_cases = 0, num_failures = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const levada::conformance::Trial& trial : levada::conformance::all_trials()) {
    if (trial.ranks != size || trial.test.name.find(only) == std::string_view::npos) continue;
    ++num_cases;
    const auto engine = communicator.make_engine();
    try {
      trial.test.run(engine);
    } catch (const std::exception& error) {
      ++num_failures;
      engine->abort(error.what());
      print_line(fmt::format("rank {}: {}: {}", rank, trial.test.name, error.what()));
    }
  }
  const auto engine = communicator.make_engine();
  if (rank == 0) print_line(levada::describe_engine(engine->info()));
  print_line(fmt::format("{} cases, {} failures", num_cases, num_failures));
  return num_failures == 0 ? 0 : 1;
}

/// A source whose sample g is the number g.
class Numbers final : public levada::Source {
 public:
  explicit Numbers(std::int64_t size = num_samples) : size_(size) {}
  std::optional<std::int64_t> size() const override { return size_; }
  std::optional<levada::Tree> read(std::int64_t first, std::int64_t count, levada::Memory& memory) override {
    count = std::min(count, size_ - first);
    if (count < 1) return std::nullopt;
    auto numbers = memory.empty(levada::dtypes::int64, {count});
    for (std::int64_t row = 0; row < count; ++row) {
      numbers.mutable_as<std::int64_t>()[static_cast<std::size_t>(row)] = first + row;
    }
    return levada::Tree::dict({{"numbers", std::move(numbers)}});
  }
  levada::Bytes cursor(std::int64_t next) const override {
    levada::ByteWriter bytes;
    bytes.put(next);
    return std::move(bytes).take();
  }
  std::string activity() const override { return "counting"; }
  levada::ReadStats stats() const override { return {}; }

  static constexpr std::int64_t num_samples = 4'000;

 private:
  std::int64_t size_;
};

/// Checks that a feed delivers Numbers::num_samples samples, of which sample g is `times` * g. Only readers need
/// `source`.
void check_feed(const std::shared_ptr<Engine>& engine, std::shared_ptr<levada::Source> source, std::int64_t times) {
  const int size = engine->info().size;
  const auto mesh = levada::Mesh::parse(fmt::format("dp={}", size));
  constexpr std::int64_t batch = 8;
  levada::Feed feed(engine, mesh, levada::layouts::data_parallel(), std::move(source), {.batch = batch});
  std::int64_t next = batch * engine->info().rank;
  while (auto received = feed.next()) {
    const auto numbers = received->tensor("numbers").as<std::int64_t>();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      expect(numbers[i] == times * (next + static_cast<std::int64_t>(i)),
             "the feed gives a rank the samples of another");
    }
    next += batch * size;
  }
  expect(feed.end()->at.step == Numbers::num_samples / (batch * size), "the feed ends at another step");
}

/// A pipeline as one rank runs it.
class Pipeline {
 public:
  explicit Pipeline(pipeline::Graph graph) : graph_(std::move(graph)), counts_(graph_.stages().size()) {}
  pipeline::IteratorPtr open(const pipeline::Copy& copy, std::shared_ptr<Engine> all_ranks = {}) {
    return pipeline::open(graph_, graph_.end(),
                          {.traits = traits_,
                           .open_context = pipeline::make_open_context(7, 0, copy),
                           .process = "the consumer",
                           .counts = counts_,
                           .all_ranks = std::move(all_ranks)});
  }

 private:
  pipeline::Graph graph_;
  pipeline::TreeItemTraits traits_;
  pipeline::Counts counts_;
};

std::int64_t number_in(const pipeline::Item& item) {
  return std::get<std::int64_t>(std::get<levada::Tree>(item).leaf());
}

/// Checks that ranks which share a pipeline's items end together, although the first has one item more than the others.
void check_full_sync(const std::shared_ptr<Engine>& engine) {
  constexpr std::int64_t of_a_rank = 200;
  const int rank = engine->info().rank, size = engine->info().size;
  const pipeline::Map triple{
      [](const pipeline::Item& item) -> pipeline::Item { return levada::Tree(3 * number_in(item)); }};
  Pipeline shared(pipeline::Graph::source(pipeline::range(0, size * of_a_rank + 1))
                      .then(pipeline::Shard{})
                      .then(triple)
                      .then(pipeline::FullSync{}));
  const auto iterator = shared.open({.rank = rank, .ranks = size}, engine);
  for (std::int64_t i = 0; i < of_a_rank; ++i) {
    const auto item = iterator->next();
    expect(item && number_in(*item) == 3 * (rank + size * i), "the pipeline gives a rank another item");
  }
  expect(!iterator->next(), "the pipeline goes on although some ranks have ended");
  levada::agree(*engine, {}, limit(), "test");
}

void check_pipeline(const std::shared_ptr<Engine>& engine) {
  check_full_sync(engine);
  const pipeline::Map sample{[](const pipeline::Item& item) -> pipeline::Item {
    return levada::Tree::dict({{"numbers", levada::Tensor::of<std::int64_t>({}, {5 * number_in(item)})}});
  }};
  const auto fed =
      std::make_shared<Pipeline>(pipeline::Graph::source(pipeline::range(0, Numbers::num_samples)).then(sample));
  const auto open_epoch = [fed](std::int64_t) { return fed->open({}); };
  const bool reads = engine->info().rank == 0;
  check_feed(engine, reads ? std::make_shared<pipeline::PipelineSource>(open_epoch) : nullptr, 5);
}

void check_exchange(const std::shared_ptr<Engine>& engine) {
  const int size = engine->info().size;
  const auto all = levada::ModelRanks::from(levada::Mesh::parse(fmt::format("dp={}", size)));
  const auto pairs = levada::ModelRanks::from(levada::Mesh::parse(fmt::format("dp={},tp=2", size / 2)));
  const auto wrong =
      levada::check_redistribution(engine, {all, pairs, levada::numbered_ids(100), {"tokens", "hidden"}});
  expect(wrong.empty(), "the exchange: " + wrong);
}

void check_sums(const std::shared_ptr<Engine>& engine) {
  const int size = engine->info().size;
  const std::int64_t count = std::int64_t{10'000} * size;
  const auto part = [](int rank, std::size_t i) {
    return 1.0F / static_cast<float>(1 + (7 * i + 101 * static_cast<std::size_t>(rank)) % 9973);
  };
  auto input = levada::Tensor::empty(levada::dtypes::float32, {count});
  auto values = input.mutable_as<float>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = part(engine->info().rank, i);
  levada::Bucketer bucketer;
  const auto handle = bucketer.reduce_scatter(engine, input, levada::ReduceOp::sum);
  bucketer.flush();
  const levada::Tensor result = handle.wait();
  const auto sums = result.as<float>();
  const std::size_t first = sums.size() * static_cast<std::size_t>(engine->info().rank);
  const auto& hosts = engine->info().host_of;  // in the order of ranks
  for (std::size_t i = 0; i < sums.size(); ++i) {
    // The sum is over the ranks of each host first, and then over the hosts.
    float sum = 0, of_host = 0;
    for (int rank = 0; rank < size; ++rank) {
      of_host += part(rank, first + i);
      const bool is_last =
          rank + 1 == size || hosts[static_cast<std::size_t>(rank) + 1] != hosts[static_cast<std::size_t>(rank)];
      if (is_last) sum += std::exchange(of_host, 0.0F);
    }
    expect(std::bit_cast<std::uint32_t>(sum) == std::bit_cast<std::uint32_t>(sums[i]),
           "a sum differs from that of the hosts' sums");
  }
  levada::agree(*engine, {}, limit(), "test");
}

void work_once(const std::shared_ptr<Engine>& engine) {
  check_feed(engine, std::make_shared<Numbers>(), 1);
  check_exchange(engine);
  check_sums(engine);
  check_pipeline(engine);
}

int work(const std::string& name) {
  const levada::mpi::Job job = levada::mpi::join({.engine = name});
  if (job.engine()->info().rank == 0) print_line(levada::describe_engine(job.engine()->info()));
  work_once(job.engine());
  print_line(fmt::format("rank {} is done", job.engine()->info().rank));
  return 0;
}

int work_until_lost(const std::string& name) {
  const levada::mpi::Job job = levada::mpi::join({.engine = name});
  levada::agree(*job.engine(), {}, limit(), "test");
  print_line(fmt::format("rank {} works", job.engine()->info().rank));
  for (;;) work_once(job.engine());
}

/// Works until rank 0 finds that MPI_JOB_END exists.
int work_until_end(const std::string& name) {
  const levada::mpi::Job job = levada::mpi::join({.engine = name});
  const int rank = job.engine()->info().rank;
  levada::agree(*job.engine(), {}, limit(), "test");
  print_line(fmt::format("rank {} works", rank));
  for (bool has_ended = false; !has_ended;) {
    work_once(job.engine());
    const std::byte mine{std::filesystem::exists(std::getenv("MPI_JOB_END"))};
    has_ended = levada::agree(*job.engine(), {&mine, 1}, limit(), "test").at(0).at(0) != std::byte{0};
  }
  print_line(fmt::format("rank {} is done", rank));
  return 0;
}

/// Feeds all ranks the same, or lets them agree, until rank MPI_JOB_HUNG hangs in its sixth step.
int work_until_hung(const std::string& name, const std::string& how) {
  const levada::mpi::Job job = levada::mpi::join({.engine = name});
  const auto& engine = job.engine();
  const int rank = engine->info().rank;
  constexpr auto timeout = std::chrono::seconds(4);
  int num_steps = 0;
  const auto step = [&] {
    ++num_steps;
    if (num_steps == 5) print_line(fmt::format("rank {} works", rank));
    if (num_steps == 6 && std::to_string(rank) == std::getenv("MPI_JOB_HUNG")) {
      if (how == "feed, stops") ::raise(SIGSTOP);
      else std::this_thread::sleep_for(std::chrono::hours(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  if (how == "agree, sleeps") {
    for (;; step()) levada::agree(*engine, {}, levada::Deadline::after(timeout), "test");
  }
  const auto mesh = levada::Mesh::parse(fmt::format("tp={}", engine->info().size));
  levada::Feed feed(engine, mesh, levada::layouts::data_parallel(), std::make_shared<Numbers>(std::int64_t{1} << 40),
                    {.batch = 10'000, .timeout = timeout});
  while (feed.next()) step();
  return 0;
}

/// Joins when MPI_JOB_BEGIN exists, with a timeout of 3 seconds.
int join_late(const std::string& name) {
  int provided = 0, rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  print_line(fmt::format("rank {} is initialized", rank));
  await_file("MPI_JOB_BEGIN");
  const levada::mpi::Job job = levada::mpi::join({.engine = name, .timeout = std::chrono::seconds(3)});
  print_line(fmt::format("rank {} has joined", rank));
  return 0;
}

/// Ranks record a span at about the same moment. Prints how far the other ranks' times are from rank 0's.
int compare_clocks(const std::string& name) {
  const levada::mpi::Job job = levada::mpi::join({.engine = name});
  Engine& engine = *job.engine();
  levada::agree(engine, {}, limit(), "test");
  const auto now = levada::trace_time(levada::Clock::now());
  levada::agree(engine, {}, limit(), "test");
  levada::Trace mine;
  mine.spans.push_back({.begin_ns = now, .duration_ns = 1});
  const auto traces = levada::cli::gather_traces(engine, mine, limit());
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    const auto apart = traces[rank].spans.at(0).begin_ns - now;
    print_line(fmt::format("rank {} is apart by {:.3f} ms", rank, static_cast<double>(apart) / 1e6));
  }
  levada::agree(engine, {}, limit(), "test");
  return 0;
}

/// The last rank raises a signal, if any; the others wait for it, or for messages that never arrive.
int wait_for_others(const std::string& name, int signal) {
  const levada::mpi::Job job = levada::mpi::join({.engine = name});
  const int rank = job.engine()->info().rank, last = job.engine()->info().size - 1;
  levada::agree(*job.engine(), {}, limit(), "test");
  print_line(fmt::format("rank {} works", rank));
  if (signal != 0 && rank == last) ::raise(signal);
  if (signal == 0) job.engine()->wait({}, limit());
  levada::agree(*job.engine(), {}, limit(), "test");
  return 0;
}

int run(const std::string& test, const std::string& name, const std::string& only) {
  if (test == "conformance") {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    const int status = check_conformance(name, only);
    MPI_Finalize();
    return status;
  }
  if (test == "work") return work(name);
  if (test == "work_until_lost") return work_until_lost(name);
  if (test == "work_until_end") return work_until_end(name);
  if (test == "hang") return work_until_hung(name, only);
  if (test == "join_late") return join_late(name);
  if (test == "clocks") return compare_clocks(name);
  return wait_for_others(name, test == "kill" ? SIGKILL : test == "stop" ? SIGSTOP : 0);
}

/// Prints the error with the rank in MPI_COMM_WORLD.
void print_error(const std::string& error) {
  int is_initialized = 0, rank = 0;
  MPI_Initialized(&is_initialized);
  if (is_initialized != 0) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  print_line(fmt::format("rank {}: {}", rank, error));
  await_file("MPI_JOB_END");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "auto", argc > 3 ? argv[3] : "");
  } catch (const levada::Error& error) {
    print_error(fmt::format("{}: {}", error.name(), error.what()));
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return 1;
}
