#include "levada/exchange/exchange_plan.h"

#include <algorithm>
#include <map>

namespace levada {

Multicast ExchangePlan::operator[](std::size_t multicast) const {
  const Row& row = content_.rows[multicast];
  const std::uint64_t begin = multicast == 0 ? 0 : content_.rows[multicast - 1].end;
  return {.from = row.from,
          .to = content_.receivers[row.to],
          .items = std::span(content_.items).subspan(begin, row.end - begin),
          .bytes = row.bytes};
}

std::uint64_t ExchangePlan::moved_bytes() const {
  std::uint64_t sum = 0;
  for (const Row& row : content_.rows) sum += row.bytes;
  return sum;
}

std::optional<std::uint64_t> ExchangePlan::Content::delivered_bytes() const {
  std::optional<std::uint64_t> sum = 0;
  for (const Row& row : rows) {
    const auto bytes = checked_mul(row.bytes, receivers[row.to].size());
    sum = bytes ? checked_add(*sum, *bytes) : std::nullopt;
    if (!sum) return sum;
  }
  return sum;
}

ExchangePlan::Load ExchangePlan::busiest() const {
  Load most, now;
  for (const Row& row : content_.rows) {  // the rows of a sender are adjacent
    if (row.from != now.rank) now = {row.from, 0};
    now.bytes += row.bytes;
    if (now.bytes > most.bytes) most = now;
  }
  return most;
}

std::vector<ExchangePlan::Edge> ExchangePlan::edges() const {
  std::vector<Edge> edges;
  std::map<int, std::uint64_t> from_one;
  for (std::size_t i = 0; i < size(); ++i) {
    const Multicast multicast = (*this)[i];
    for (const int to : multicast.to) from_one[to] += multicast.bytes;
    if (i + 1 < size() && content_.rows[i + 1].from == multicast.from) continue;
    for (const auto& [to, bytes] : from_one) edges.push_back({multicast.from, to, bytes});
    from_one.clear();
  }
  return edges;
}

std::vector<int> ExchangePlan::ranks() const {
  std::vector<int> ranks;
  for (const Row& row : content_.rows) ranks.push_back(row.from);
  for (const auto& list : content_.receivers) ranks.insert(ranks.end(), list.begin(), list.end());
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

bool ExchangePlan::operator==(const ExchangePlan& other) const {
  const auto key = [](const ExchangePlan& plan, std::size_t k) -> const SampleKey& {
    return plan.samples().keys()[plan.keys()[k]];
  };
  const auto same_item = [&](const ExchangeItem& a, const ExchangeItem& b) {
    if (samples().id(a.sample) != other.samples().id(b.sample) || parts()[a.part] != other.parts()[b.part])
      return false;
    std::vector<std::size_t> own, theirs;
    for_each_key(a.keys, [&](std::size_t k) { own.push_back(k); });
    for_each_key(b.keys, [&](std::size_t k) { theirs.push_back(k); });
    return std::ranges::equal(own, theirs, [&](std::size_t k, std::size_t l) {
      return key(*this, k) == key(other, l) && std::ranges::equal(samples().lengths(a.sample, keys()[k]),
                                                                  other.samples().lengths(b.sample, other.keys()[l]));
    });
  };
  const auto same_multicast = [&](const Multicast& a, const Multicast& b) {
    return a.from == b.from && std::ranges::equal(a.to, b.to) && std::ranges::equal(a.items, b.items, same_item);
  };
  if (size() != other.size()) return false;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!same_multicast((*this)[i], other[i])) return false;
  }
  return true;
}

}  // namespace levada
