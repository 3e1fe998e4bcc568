// Runs pipelines with all their processes as threads of the test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/engine/inproc/inproc.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/pipeline/consumer.h"
#include "levada/pipeline/open_graph_testing.h"
#include "levada/pipeline/tree_item_traits.h"

namespace levada::pipeline::testing {

enum class Over : std::uint8_t { inproc, shm };

inline int processes_of(const Graph& graph, const ProcessOptions& options) {
  const Placement placement = place(graph, options.workers, options.ordered);
  if (options.workers == 0 || !placement.collect_boundary) return 1;
  return 1 + options.workers + (placement.dispatch_boundary ? 1 : 0);
}

inline const TreeItemTraits& tree_item_traits() {
  static const TreeItemTraits traits;
  return traits;
}

inline Process process_of(std::shared_ptr<Engine> engine, const Graph& graph, const ProcessOptions& options) {
  const int rank = engine ? engine->info().rank : 0;
  return {.engine = std::move(engine),
          .graph = graph,
          .traits = tree_item_traits(),
          .options = options,
          .name = "process " + std::to_string(rank),
          .all_ranks = nullptr};
}

using Consume = std::function<void(Consumer&)>;

/// Runs one rank of a pipeline.
inline void take_part(std::shared_ptr<Engine> engine, const Graph& graph, const ProcessOptions& options,
                      const Consume& consume) {
  const bool consumes = !engine || engine->info().rank == 0;
  const Process process = process_of(std::move(engine), graph, options);
  if (!consumes) return serve(process);
  Consumer consumer(process);
  consume(consumer);
  EXPECT_TRUE(consumer.shutdown(std::chrono::seconds(20)));
}

/// Calls `consume` with a pipeline whose other processes are threads.
inline void run_pipeline(const Graph& graph, const ProcessOptions& options, const Consume& consume,
                         Over over = Over::inproc) {
  const int size = processes_of(graph, options);
  if (size == 1) return take_part(nullptr, graph, options, consume);
  const auto body = [&](std::shared_ptr<Engine> engine) { take_part(std::move(engine), graph, options, consume); };
  if (over == Over::inproc) return inproc::run_ranks(size, body);
  EXPECT_EQ(shm::test::run_threads(size, body, std::size_t{1} << 28), "");
}

inline std::vector<Tree> rest_of(Consumer& consumer) {
  std::vector<Tree> items;
  while (auto item = consumer.next()) items.push_back(std::get<Tree>(*std::move(item)));
  return items;
}
inline std::vector<Tree> take_from(Consumer& consumer, std::size_t count) {
  std::vector<Tree> items;
  while (items.size() < count) {
    auto item = consumer.next();
    if (!item) break;
    items.push_back(std::get<Tree>(*std::move(item)));
  }
  return items;
}

}  // namespace levada::pipeline::testing
