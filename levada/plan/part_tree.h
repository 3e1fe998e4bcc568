// Finds the cheapest of many parts in logarithmic time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace levada {

/// Finds the cheapest part that has room without scanning all parts: a tree in which each node has the lowest cost and
/// the fewest tokens of the parts below it.
class PartTree {
 public:
  explicit PartTree(std::size_t parts) : width_(std::bit_ceil(parts)), nodes_(2 * width_) {}

  void set(std::size_t part, std::int64_t cost, std::int64_t tokens) {
    nodes_[width_ + part] = {cost, tokens};
    for (std::size_t node = (width_ + part) / 2; node > 0; node /= 2) {
      const auto &left = nodes_[2 * node], &right = nodes_[2 * node + 1];
      nodes_[node] = {std::min(left.cost, right.cost), std::min(left.tokens, right.tokens)};
    }
  }

  /// Returns the cheapest part with at most max_tokens tokens or, if all parts have more, the one with the fewest
  /// tokens. Returns the first one among equals.
  std::size_t find(std::int64_t max_tokens) const {
    if (nodes_[1].tokens > max_tokens) return emptiest();
    BestLeaf best;
    search(1, max_tokens, best);
    return best.leaf - width_;
  }

 private:
  struct Node {
    std::int64_t cost = INT64_MAX, tokens = INT64_MAX;
  };
  struct BestLeaf {
    std::int64_t cost = INT64_MAX;
    std::size_t leaf = 0;
  };

  std::size_t emptiest() const {
    std::size_t node = 1;
    while (node < width_) node = 2 * node + (nodes_[2 * node].tokens == nodes_[1].tokens ? 0 : 1);
    return node - width_;
  }

  void search(std::size_t node, std::int64_t max_tokens, BestLeaf& best) const {
    if (nodes_[node].tokens > max_tokens || nodes_[node].cost >= best.cost) return;
    if (node >= width_) {
      best = {nodes_[node].cost, node};
      return;
    }
    search(2 * node, max_tokens, best);
    search(2 * node + 1, max_tokens, best);
  }

  std::size_t width_;
  std::vector<Node> nodes_;
};

}  // namespace levada
