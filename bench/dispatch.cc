#include "bench/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "levada/base/error.h"
#include "levada/pipeline/consumer.h"
#include "levada/pipeline/item_sources.h"
#include "levada/pipeline/tree_item_traits.h"

namespace levada::bench {
namespace {

constexpr int max_workers = 62;
constexpr std::uint64_t int_bytes = 8;

std::int64_t number_of(const pipeline::Item& item) {
  const auto& leaf = std::get<Tree>(item).leaf();
  if (const auto* number = std::get_if<std::int64_t>(&leaf)) return *number;
  return std::get<Tensor>(leaf).as<std::int64_t>().front();
}

/// Makes tensors whose content is unset except for the number, so that the source costs next to nothing.
pipeline::Map tensor_of(std::uint64_t bytes) {
  const auto words = static_cast<std::int64_t>(bytes / 8);
  return {[words](const pipeline::Item& item) -> pipeline::Item {
    Tensor tensor = Tensor::empty(dtypes::int64, {words});
    tensor.mutable_as<std::int64_t>().front() = number_of(item);
    return Tree(std::move(tensor));
  }};
}

pipeline::Graph graph_of(const DispatchOptions& options) {
  auto graph = pipeline::Graph::source(pipeline::range(0, std::numeric_limits<std::int64_t>::max()));
  if (options.item_bytes > int_bytes) graph = graph.then(tensor_of(options.item_bytes), "tensor");
  if (options.shuffle > 0) graph = graph.then(pipeline::Shuffle{.buffer = options.shuffle});
  return graph.then(pipeline::Dispatch{}).then(pipeline::Map{[](pipeline::Item item) { return item; }});
}

/// Takes items for `seconds`. Throws unless they arrive in order, if they are not shuffled. Returns their number.
std::int64_t take(pipeline::Consumer& consumer, std::int64_t first, double seconds, bool is_shuffled) {
  const auto end = Clock::now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  std::int64_t next = first;
  do {
    for (int i = 0; i < 64; ++i, ++next) {
      const auto item = consumer.next();
      if (!item || (number_of(*item) != next && !is_shuffled))
        throw EngineError(fmt::format("item {} did not come in its turn", next));
    }
  } while (Clock::now() < end);
  return next - first;
}

}  // namespace

void check(const DispatchOptions& options) {
  if (options.workers < 1 || options.workers > max_workers) {
    throw InvalidArgument(fmt::format("--workers is {}; give 1 to {}", options.workers, max_workers));
  }
  if (options.item_bytes == 0 || (options.item_bytes > int_bytes && options.item_bytes % int_bytes != 0)) {
    throw InvalidArgument(
        fmt::format("--item-bytes is {}; give up to {}, or a multiple of it", options.item_bytes, int_bytes));
  }
  if (options.shuffle < 0) throw InvalidArgument(fmt::format("--shuffle is {}; give at least 0", options.shuffle));
  if (!(options.seconds > 0)) throw InvalidArgument("--seconds has to be more than 0");
}

int ranks_of(const DispatchOptions& options) {
  return 2 + options.workers;
}

DispatchResult measure(const std::shared_ptr<Engine>& engine, const DispatchOptions& options) {
  check(options);
  const pipeline::TreeItemTraits traits;
  const int rank = engine->info().rank;
  const pipeline::Process process{.engine = engine,
                                  .graph = graph_of(options),
                                  .traits = traits,
                                  .options = {.workers = options.workers,
                                              .worker_prefetch = options.prefetch,
                                              .main_prefetch = options.prefetch,
                                              .record = options.record},
                                  .name = fmt::format("rank {}", rank),
                                  .all_ranks = nullptr};
  if (rank != 0) {
    pipeline::serve(process);
    return {};
  }
  pipeline::Consumer consumer(process);
  consumer.reset(0);
  const bool is_shuffled = options.shuffle > 0;
  const std::int64_t warm_up = take(consumer, 0, std::min(0.3, options.seconds), is_shuffled);
  const auto before = consumer.stats();
  const auto begun = Clock::now();
  DispatchResult result;
  result.items = take(consumer, warm_up, options.seconds, is_shuffled);
  const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  const auto after = consumer.stats();
  consumer.shutdown(std::chrono::seconds(10));
  const auto items = static_cast<double>(result.items);
  const auto of = [&](auto pipeline::Stats::*what) { return static_cast<double>(after.*what - before.*what); };
  result.items_per_s = items / seconds;
  result.wakeups_per_item = of(&pipeline::Stats::wakeups) / items;
  // Each byte is sent twice: to a worker, and to the consumer.
  result.copies_per_byte = 2 * of(&pipeline::Stats::copied) / of(&pipeline::Stats::bytes);
  return result;
}

}  // namespace levada::bench
