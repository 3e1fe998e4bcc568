// Runs graphs in the test's own process.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "levada/pipeline/graph.h"
#include "levada/pipeline/item_sources.h"
#include "levada/pipeline/open_context.h"
#include "levada/pipeline/open_graph.h"
#include "levada/pipeline/tree_item_traits.h"

namespace levada::pipeline::testing {

/// A graph opened by the only process of the only rank, or by one of several.
class Opened {
 public:
  explicit Opened(const Graph& graph, const Copy& copy = {}, std::int64_t epoch = 0, std::uint64_t seed = 7)
      : counts_(graph.stages().size()),
        iterator_(open(graph, graph.end(),
                       RuntimeOptions{.traits = traits_,
                                      .open_context = make_open_context(seed, epoch, copy),
                                      .process = "process 42",
                                      .counts = counts_})) {}

  Iterator& iterator() { return *iterator_; }
  const Counts& counts() const { return counts_; }
  /// Returns the next items, at most `max_items` of them.
  std::vector<Tree> items(std::size_t max_items = 1 << 20) {
    std::vector<Tree> items;
    while (items.size() < max_items) {
      auto item = iterator_->next();
      if (!item) break;
      items.push_back(std::get<Tree>(std::move(*item)));
    }
    return items;
  }
  std::vector<std::int64_t> numbers() {
    std::vector<std::int64_t> numbers;
    for (const auto& item : items()) numbers.push_back(std::get<std::int64_t>(item.leaf()));
    return numbers;
  }

 private:
  TreeItemTraits traits_;
  Counts counts_;
  IteratorPtr iterator_;
};

inline std::vector<Tree> items_of(const Graph& graph) {
  return Opened(graph).items();
}
inline std::vector<std::int64_t> numbers_of(const Graph& graph) {
  return Opened(graph).numbers();
}

inline Graph first_numbers(std::int64_t count) {
  return Graph::source(range(0, count));
}
inline std::int64_t number_in(const Item& item) {
  return std::get<std::int64_t>(std::get<Tree>(item).leaf());
}
inline Map mapped(std::function<std::int64_t(std::int64_t)> function, OnError on_error = OnError::raise) {
  return {[function = std::move(function)](const Item& item) -> Item { return Tree(function(number_in(item))); },
          on_error};
}
/// Like mapped(), on two threads.
inline Map mapped_on_threads(std::function<std::int64_t(std::int64_t)> function) {
  Map map = mapped(std::move(function));
  map.threads = 2;
  return map;
}
inline Filter kept(std::function<bool(std::int64_t)> predicate, OnError on_error = OnError::raise) {
  return {[predicate = std::move(predicate)](const Item& item) { return predicate(number_in(item)); }, on_error};
}
/// Replaces i by i % max_items items: 10 * i, 10 * i + 1, ...
inline FlatMap several(std::int64_t max_items) {
  return {[max_items](const Item& item) {
    const auto i = number_in(item);
    return range(10 * i, 10 * i + i % max_items)->open({}, {});
  }};
}

/// Returns the failure that `action` throws.
template <typename Action>
Failure failure_of(const Action& action) {
  try {
    action();
  } catch (const StageFailed& error) {
    return error.failure();
  }
  throw std::logic_error("nothing failed");  // also seen from a forked rank
}

}  // namespace levada::pipeline::testing
