#include "levada/exchange/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>

#include "levada/base/error.h"

namespace levada {
namespace {

/// Items times parts that the differencing method spends memory on.
constexpr std::size_t most_cells = std::size_t{1} << 20;

struct Part {
  std::int64_t tokens = 0;
  std::vector<std::size_t> items;
};

/// A partition of some of the items, fullest part first. What it is worth: the difference that is left.
struct Partial {
  std::vector<Part> parts;
  std::size_t first = 0;  ///< its lowest item, which decides between equal differences

  std::int64_t spread() const { return parts.front().tokens - parts.back().tokens; }
};

void check(std::span<const std::int64_t> tokens, std::size_t parts) {
  if (parts == 0) throw InvalidArgument("a division over no parts");
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0) throw InvalidArgument(fmt::format("item {} has {} tokens", i, tokens[i]));
    if (__builtin_add_overflow(sum, tokens[i], &sum)) {
      throw InvalidArgument("the tokens to be divided do not fit in 63 bits");
    }
  }
}

/// Items by falling tokens, equal ones by number.
std::vector<std::size_t> by_size(std::span<const std::int64_t> tokens) {
  std::vector<std::size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return tokens[a] > tokens[b]; });
  return order;
}

/// `count` items, each in a part of its own, the other parts empty.
Partial singletons(std::span<const std::size_t> items, std::span<const std::int64_t> tokens, std::size_t parts) {
  Partial partial;
  partial.parts.resize(parts);
  for (std::size_t i = 0; i < items.size(); ++i) partial.parts[i] = {tokens[items[i]], {items[i]}};
  partial.first = *std::ranges::min_element(items);
  return partial;
}

/// The fullest parts of one with the emptiest of the other.
Partial difference(Partial a, Partial b) {
  const std::size_t last = b.parts.size() - 1;
  for (std::size_t p = 0; p <= last; ++p) {
    Part& part = a.parts[p];
    Part& other = b.parts[last - p];
    part.tokens += other.tokens;
    if (part.items.size() < other.items.size()) part.items.swap(other.items);
    part.items.insert(part.items.end(), other.items.begin(), other.items.end());
  }
  std::ranges::stable_sort(a.parts, [](const Part& x, const Part& y) { return x.tokens > y.tokens; });
  a.first = std::min(a.first, b.first);
  return a;
}

/// `at_once`: items of one partition to begin with: 1, or `parts` for equal counts.
std::vector<Part> karmarkar_karp(std::span<const std::int64_t> tokens, std::size_t parts, std::size_t at_once) {
  const auto order = by_size(tokens);
  std::vector<Partial> partials;
  using Entry = std::pair<std::int64_t, std::size_t>;  // the widest spread first, then the lowest number
  const auto later = [](const Entry& a, const Entry& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  std::priority_queue<Entry, std::vector<Entry>, decltype(later)> waiting(later);
  const auto add = [&](Partial partial) {
    waiting.emplace(partial.spread(), partials.size());
    partials.push_back(std::move(partial));
  };
  for (std::size_t i = 0; i < order.size(); i += at_once) {
    const auto items = std::span(order).subspan(i, std::min(at_once, order.size() - i));
    add(singletons(items, tokens, parts));
  }
  while (waiting.size() > 1) {
    const std::size_t a = waiting.top().second;
    waiting.pop();
    const std::size_t b = waiting.top().second;
    waiting.pop();
    add(difference(std::move(partials[a]), std::move(partials[b])));
  }
  return waiting.empty() ? std::vector<Part>(parts) : std::move(partials[waiting.top().second].parts);
}

/// The longest first, each to the emptiest part.
std::vector<Part> longest_first(std::span<const std::int64_t> tokens, std::size_t parts) {
  std::vector<Part> divided(parts);
  using Entry = std::pair<std::int64_t, std::size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> emptiest;
  for (std::size_t p = 0; p < parts; ++p) emptiest.emplace(0, p);
  for (const std::size_t item : by_size(tokens)) {
    const std::size_t p = emptiest.top().second;
    emptiest.pop();
    divided[p].tokens += tokens[item];
    divided[p].items.push_back(item);
    emptiest.emplace(divided[p].tokens, p);
  }
  return divided;
}

std::int64_t fullest(const std::vector<Part>& parts) {
  return std::ranges::max_element(parts, {}, &Part::tokens)->tokens;
}

Partition as_partition(std::vector<Part> parts) {
  Partition partition;
  for (Part& part : parts) {
    std::ranges::sort(part.items);
    partition.push_back(std::move(part.items));
  }
  std::ranges::stable_sort(partition, [](const auto& a, const auto& b) {
    if (a.empty() || b.empty()) return !a.empty() && b.empty();
    return a.front() < b.front();
  });
  return partition;
}

/// Where runs of at most `most` tokens end, each as long as may be; empty where `parts` such runs do not suffice.
std::vector<std::size_t> cut(std::span<const std::int64_t> tokens, std::size_t parts, std::int64_t most) {
  std::vector<std::size_t> ends;
  std::size_t at = 0;
  for (std::size_t p = 0; p < parts; ++p) {
    const std::size_t stop = tokens.size() - (parts - p - 1);  // an item for each part behind
    std::int64_t sum = 0;
    while (at < stop && tokens[at] <= most - sum) sum += tokens[at++];
    if (ends.empty() ? at == 0 : at == ends.back()) return {};
    ends.push_back(at);
  }
  return at == tokens.size() ? ends : std::vector<std::size_t>{};
}

}  // namespace

Partition partition_by_tokens(std::span<const std::int64_t> tokens, std::size_t parts, PartSizes sizes) {
  check(tokens, parts);
  if (sizes == PartSizes::equal) {
    if (tokens.size() < parts) {
      throw InvalidArgument(
          fmt::format("{} items cannot be divided over {} parts of equal counts", tokens.size(), parts));
    }
    return as_partition(karmarkar_karp(tokens, parts, parts));
  }
  auto greedy = longest_first(tokens, parts);
  if (tokens.size() > most_cells / parts) return as_partition(std::move(greedy));
  auto differenced = karmarkar_karp(tokens, parts, 1);
  return as_partition(fullest(greedy) < fullest(differenced) ? std::move(greedy) : std::move(differenced));
}

Partition partition_in_order(std::span<const std::int64_t> tokens, std::size_t parts) {
  check(tokens, parts);
  if (tokens.size() < parts) {
    throw InvalidArgument(fmt::format("{} items cannot be cut into {} runs", tokens.size(), parts));
  }
  std::int64_t low = 0;
  std::int64_t high = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (cut(tokens, parts, middle).empty()) low = middle + 1;
    else high = middle;
  }
  Partition partition;
  std::size_t begin = 0;
  for (const std::size_t end : cut(tokens, parts, low)) {
    auto& part = partition.emplace_back(end - begin);
    std::iota(part.begin(), part.end(), begin);
    begin = end;
  }
  return partition;
}

std::vector<std::int64_t> tokens_by_part(const Partition& partition, std::span<const std::int64_t> tokens) {
  std::vector<std::int64_t> sums;
  for (const auto& part : partition) {
    auto& sum = sums.emplace_back(0);
    for (const std::size_t item : part) sum += tokens[item];
  }
  return sums;
}

}  // namespace levada
