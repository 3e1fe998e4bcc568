// A plan as bytes: header, the samples it moves, parts, lists of receivers, then multicasts with their items.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "levada/base/error.h"
#include "levada/exchange/exchange_plan.h"
#include "levada/exchange/ownership_codec.h"

namespace levada {
namespace {

constexpr std::uint32_t magic = 0x5058564c;  // "LVXP"
constexpr std::uint32_t version = 1;

std::vector<int> get_receivers(ByteReader& reader) {
  std::vector<int> ranks(reader.get_count(4));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i] = reader.get<std::int32_t>();
    const bool in_order = i == 0 || ranks[i - 1] < ranks[i];
    if (ranks[i] < 0 || ranks[i] >= most_ranks || !in_order) reader.fail("receivers that cannot be");
  }
  if (ranks.empty()) reader.fail("no receivers");
  return ranks;
}

/// The place of each list among all, ascending.
std::vector<std::size_t> places_of(const std::vector<std::vector<int>>& lists, const ByteReader& reader) {
  std::vector<std::size_t> ascending(lists.size()), places(lists.size());
  std::iota(ascending.begin(), ascending.end(), std::size_t{0});
  std::ranges::sort(
      ascending, {}, [&](std::size_t list) -> const auto& { return lists[list]; });
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    if (i > 0 && lists[ascending[i]] == lists[ascending[i - 1]]) reader.fail("receivers that stand twice");
    places[ascending[i]] = i;
  }
  return places;
}

ExchangeItem get_item(ByteReader& reader, const ExchangePlan::Content& content, int from) {
  const ExchangeItem item{reader.get<std::uint32_t>(), reader.get<std::uint16_t>(), reader.get<std::uint16_t>()};
  const bool known = item.sample < content.samples.size() && item.key < content.samples.keys().size() &&
                     item.part < content.parts.size();
  if (!known) reader.fail("an item that was not listed");
  const Holders& holders = content.samples.holders(item.sample, item.key);
  const auto holder = std::ranges::lower_bound(holders, from, {}, &Holder::rank);
  if (holder == holders.end() || holder->rank != from || !holder->part.is_whole()) {
    reader.fail(fmt::format("rank {} is to send what it does not hold", from));
  }
  return item;
}

void check_disjoint(const ExchangePlan::Content& content, std::span<const std::uint32_t> lists,
                    const ByteReader& reader) {
  std::vector<int> receivers;
  for (const std::uint32_t list : lists) {
    receivers.insert(receivers.end(), content.receivers[list].begin(), content.receivers[list].end());
  }
  std::ranges::sort(receivers);
  if (std::ranges::adjacent_find(receivers) != receivers.end()) reader.fail("an item that a rank gets twice");
}

/// Each reaches a rank once, as in every plan.
void check_items(const ExchangePlan::Content& content, const ByteReader& reader) {
  struct Sent {
    ExchangeItem item;
    std::uint32_t to = 0;
  };
  std::vector<Sent> ascending;
  ascending.reserve(content.items.size());
  for (const ExchangePlan::Row& row : content.rows) {
    while (ascending.size() < row.end) ascending.push_back({content.items[ascending.size()], row.to});
  }
  std::ranges::sort(ascending, {},
                    [](const Sent& sent) { return std::tuple(sent.item.sample, sent.item.key, sent.item.part); });
  std::set<std::vector<std::uint32_t>> checked;  // receivers of many items, mostly the same
  for (auto begin = ascending.begin(); begin != ascending.end();) {
    std::vector<std::uint32_t> lists;
    for (const ExchangeItem item = begin->item; begin != ascending.end() && begin->item == item; ++begin) {
      lists.push_back(begin->to);
    }
    if (lists.size() > 1 && checked.insert(lists).second) check_disjoint(content, lists, reader);
  }
}

void add_up_bytes(ExchangePlan::Content& content, const ByteReader& reader) {
  std::size_t item = 0;
  for (ExchangePlan::Row& row : content.rows) {
    for (; item < row.end; ++item) {
      const auto sum = checked_add(row.bytes, content.bytes(content.items[item]));
      if (!sum) reader.fail("more bytes than there can be");
      row.bytes = *sum;
    }
  }
  if (!content.delivered_bytes()) reader.fail("more bytes than there can be");
}

}  // namespace

Bytes ExchangePlan::encode() const {
  std::vector<std::size_t> chosen;
  std::vector<std::uint32_t> numbers(content_.samples.size(), UINT32_MAX);
  for (const ExchangeItem& item : content_.items) {
    if (numbers[item.sample] != UINT32_MAX) continue;
    numbers[item.sample] = static_cast<std::uint32_t>(chosen.size());
    chosen.push_back(item.sample);
  }
  ByteWriter writer;
  writer.put(magic);
  writer.put(version);
  writer.put(content_.chunk_bytes);
  writer.put(content_.lower_bound_bytes);
  writer.put_sized(content_.samples.select(chosen).encode());
  writer.put(static_cast<std::uint32_t>(content_.parts.size()));
  for (const SequencePart& part : content_.parts) {
    put_part(writer, part);
  }
  writer.put(static_cast<std::uint32_t>(content_.receivers.size()));
  for (const auto& list : content_.receivers) {
    writer.put(static_cast<std::uint32_t>(list.size()));
    for (const int rank : list) writer.put(std::int32_t{rank});
  }
  writer.put(static_cast<std::uint32_t>(size()));
  for (std::size_t i = 0; i < size(); ++i) {
    writer.put(std::int32_t{content_.rows[i].from});
    writer.put(content_.rows[i].to);
    const auto items = (*this)[i].items;
    writer.put(static_cast<std::uint32_t>(items.size()));
    for (const ExchangeItem& item : items) {
      writer.put(numbers[item.sample]);
      writer.put(item.key);
      writer.put(item.part);
    }
  }
  return std::move(writer).take();
}

ExchangePlan ExchangePlan::decode(ByteView bytes) {
  ByteReader reader(bytes);
  if (reader.get<std::uint32_t>() != magic) reader.fail("these bytes are no exchange plan");
  if (reader.get<std::uint32_t>() != version) reader.fail("an exchange plan of another version");
  Content content;
  content.chunk_bytes = reader.get<std::uint64_t>();
  if (content.chunk_bytes == 0) reader.fail("messages of no bytes");
  content.lower_bound_bytes = reader.get<std::uint64_t>();
  content.samples = Ownership::decode(reader.get_sized());
  content.parts.clear();
  for (auto count = reader.get_count(5); count > 0; --count) content.parts.push_back(get_part(reader));
  if (content.parts.empty() || !content.parts.front().is_whole()) reader.fail("the first part is not the whole");
  for (auto count = reader.get_count(4); count > 0; --count) content.receivers.push_back(get_receivers(reader));
  const auto places = places_of(content.receivers, reader);
  for (auto count = reader.get_count(12); count > 0; --count) {
    Row row{.from = reader.get<std::int32_t>(), .to = reader.get<std::uint32_t>()};
    if (row.from < 0 || row.from >= most_ranks || row.to >= content.receivers.size())
      reader.fail("a multicast between ranks that were not listed");
    if (std::ranges::binary_search(content.receivers[row.to], row.from)) {
      reader.fail(fmt::format("rank {} is to send to itself", row.from));
    }
    const auto place = [&](const Row& each) { return std::pair(each.from, places[each.to]); };
    if (!content.rows.empty() && place(content.rows.back()) >= place(row)) {
      reader.fail("multicasts that are not in order");
    }
    for (auto items = reader.get_count(8); items > 0; --items) {
      content.items.push_back(get_item(reader, content, row.from));
    }
    row.end = content.items.size();
    content.rows.push_back(row);
  }
  reader.expect_end();
  check_items(content, reader);
  add_up_bytes(content, reader);
  return ExchangePlan(std::move(content));
}

}  // namespace levada
