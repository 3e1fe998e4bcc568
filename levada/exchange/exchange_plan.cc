#include "levada/exchange/exchange_plan.h"

#include <algorithm>
#include <map>

#include "levada/base/hash.h"

namespace levada {

Multicast ExchangePlan::operator[](std::size_t multicast) const {
  const Row& row = content_.rows[multicast];
  const std::uint64_t begin = multicast == 0 ? 0 : content_.rows[multicast - 1].end;
  return {.from = row.from,
          .to = content_.receivers[row.to],
          .items = std::span(content_.items).subspan(begin, row.end - begin),
          .bytes = row.bytes,
          .messages = row.bytes / content_.chunk_bytes + (row.bytes % content_.chunk_bytes != 0 ? 1 : 0)};
}

std::uint64_t ExchangePlan::Content::bytes(const ExchangeItem& item) const {
  const SequencePart& part = parts[item.part];
  std::int64_t tokens = 0;
  for (const std::int64_t length : samples.lengths(item.sample, item.key)) {
    tokens += part.is_whole() ? length : tokens_in(part, length).tokens();
  }
  return samples.keys()[item.key].bytes(tokens).value_or(0);
}

std::vector<std::int64_t> ExchangePlan::lengths(const ExchangeItem& item) const {
  const SequencePart& part = content_.parts[item.part];
  const auto whole = content_.samples.lengths(item.sample, item.key);
  std::vector<std::int64_t> lengths(whole.begin(), whole.end());
  if (part.is_whole()) return lengths;
  for (std::int64_t& length : lengths) length = tokens_in(part, length).tokens();
  return lengths;
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

std::uint64_t ExchangePlan::messages() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < size(); ++i) sum += (*this)[i].messages;
  return sum;
}

ExchangePlan::Load ExchangePlan::busiest() const {
  Load most, now;
  for (const Row& row : content_.rows) {  // those of one sender follow each other
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

Bytes ExchangePlan::canonical(std::size_t i) const {
  const Multicast multicast = (*this)[i];
  ByteWriter writer;
  writer.put(multicast.from);
  writer.put(multicast.to.size());
  for (const int to : multicast.to) writer.put(to);
  for (const ExchangeItem& item : multicast.items) {
    const SampleKey& key = content_.samples.keys()[item.key];
    const SequencePart& part = content_.parts[item.part];
    writer.put_sized(content_.samples.id(item.sample));
    writer.put_sized(key.name);
    writer.put(key.dtype.code);
    writer.put(key.dtype.bits);
    writer.put(key.dtype.lanes);
    writer.put(key.trailing.rank());
    for (const std::int64_t extent : key.trailing) writer.put(extent);
    writer.put(part.index);
    writer.put(part.count);
    writer.put(static_cast<std::uint8_t>(part.zigzag));
    const auto lengths = content_.samples.lengths(item.sample, item.key);
    writer.put(lengths.size());
    for (const std::int64_t length : lengths) writer.put(length);
  }
  return std::move(writer).take();
}

std::uint64_t ExchangePlan::fingerprint() const {
  std::uint64_t hash = content_.chunk_bytes;
  for (std::size_t i = 0; i < size(); ++i) hash = hash64(canonical(i), hash);
  return hash;
}

bool ExchangePlan::operator==(const ExchangePlan& other) const {
  if (size() != other.size() || chunk_bytes() != other.chunk_bytes()) return false;
  for (std::size_t i = 0; i < size(); ++i) {
    if (canonical(i) != other.canonical(i)) return false;
  }
  return true;
}

}  // namespace levada
