#include "levada/exchange/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>

#include "levada/base/assert.h"
#include "levada/base/error.h"
#include "levada/exchange/assignment.h"
#include "levada/exchange/id_table.h"
#include "levada/exchange/wants.h"

namespace levada {
namespace {

constexpr std::size_t max_keys = 64;
/// Maximum number of parts that an ExchangeItem can refer to.
constexpr std::size_t max_parts = std::size_t{UINT16_MAX} + 1;

std::uint64_t pair_of(std::uint32_t a, std::uint32_t b) {
  return std::uint64_t{a} << 32 | b;
}

/// Keys of one sample with the same receivers and the same candidate senders.
struct Transfer {
  std::uint32_t sample = 0;
  std::uint32_t to = 0;       ///< list of ranks
  std::uint32_t sources = 0;  ///< list of ranks
  std::uint16_t part = 0;
  std::uint64_t keys = 0;  ///< one bit per key
  std::uint64_t bytes = 0;
};

/// Receivers that lack one key of one sample, and the candidate senders.
struct Shortfall {
  std::uint32_t to = 0;
  std::uint32_t sources = 0;
  std::uint16_t part = 0;
};

[[noreturn]] void throw_too_large() {
  throw InvalidArgument("an exchange cannot move 2^64 bytes or more at once");
}

std::uint64_t sum_of(std::uint64_t a, std::uint64_t b) {
  const auto sum = checked_add(a, b);
  if (!sum) throw_too_large();
  return *sum;
}

/// Sorts `order` by group[i] of each of its entries i; entries of one group keep their order. Groups are below
/// `groups`. A counting sort: linear.
void stable_sort_by(std::vector<std::uint32_t>& order, std::span<const std::uint32_t> group, std::size_t groups) {
  std::vector<std::uint32_t> next(groups + 1, 0);
  for (const std::uint32_t i : order) ++next[group[i] + 1];
  for (std::size_t each = 1; each <= groups; ++each) next[each] += next[each - 1];
  std::vector<std::uint32_t> sorted(order.size());
  for (const std::uint32_t i : order) sorted[next[group[i]]++] = i;
  order = std::move(sorted);
}

class Planner {
 public:
  Planner(const SampleDirectory& directory, const ExchangeRequest& request, std::span<const std::uint32_t> requested,
          std::span<const int> host_of, bool ids_ascend)
      : directory_(directory), request_(request), host_of_(host_of), ids_ascend_(ids_ascend) {
    content_.samples = directory;
    find_keys();
    const int ranks = host_of.empty() ? max_ranks : static_cast<int>(host_of.size());
    auto found = find_wants(directory, request, requested, ranks);
    wants_ = std::move(found.lists);
    want_of_ = std::move(found.of_sample);
  }

  ExchangePlan run() {
    find_transfers();
    errors_.raise();
    list_places_ = places_of_lists();
    choose_senders();
    write();
    if (!content_.delivered_bytes()) throw_too_large();
    return ExchangePlan(std::move(content_));
  }

 private:
  struct Key {
    std::string name;
    std::optional<std::size_t> column;  ///< empty if no rank holds it
    bool cut = false;
    std::uint64_t token_bytes = 0;
  };

  void find_keys() {
    std::vector<std::string> names = request_.keys;
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.size() > max_keys) {
      throw InvalidArgument(fmt::format("an exchange moves at most {} keys at once, got {}", max_keys, names.size()));
    }
    const std::set<std::string_view> cut_keys(request_.cut_keys.begin(), request_.cut_keys.end());
    for (const std::string_view name : cut_keys) {
      if (std::ranges::binary_search(names, name)) continue;
      throw InvalidArgument(fmt::format("cut_keys has key {}, which keys lacks; add it to keys", name));
    }
    for (const std::string& name : names) {
      const auto column = directory_.find_key(name);
      const std::uint64_t token_bytes = column ? directory_.keys()[*column].bytes(1).value_or(0) : 0;
      keys_.push_back({name, column, cut_keys.contains(name), token_bytes});
      content_.keys.push_back(column ? static_cast<std::uint16_t>(*column) : ExchangePlan::no_key);
    }
  }

  int host(int rank) const {
    const auto at = static_cast<std::size_t>(rank);
    return at < host_of_.size() ? host_of_[at] : 0;
  }

  /// Receivers, and the holders from which one sender is chosen.
  struct Share {
    std::vector<int> to, sources;
  };

  /// Divides receivers among hosts: those on a holder's host receive from that host, so the sample is never sent to a
  /// host that has it. The host with the most of these receivers also sends to all hosts without a holder, once.
  std::vector<Share> shares(const std::vector<int>& holders, const std::vector<int>& to) const {
    std::map<int, Share> on_host;
    for (const int rank : holders) on_host[host(rank)].sources.push_back(rank);
    std::vector<int> elsewhere;
    for (const int rank : to) {
      const auto found = on_host.find(host(rank));
      (found == on_host.end() ? elsewhere : found->second.to).push_back(rank);
    }
    std::vector<Share> shares;
    for (auto& [host, share] : on_host) {
      if (!share.to.empty()) shares.push_back(std::move(share));
    }
    if (shares.empty()) return {{to, holders}};
    auto& receivers = std::ranges::max_element(shares, {}, [](const Share& share) { return share.to.size(); })->to;
    receivers.insert(receivers.end(), elsewhere.begin(), elsewhere.end());
    std::ranges::sort(receivers);
    return shares;
  }

  std::uint16_t part_number(const SequencePart& part) {
    const std::uint32_t number = parts_.of(part);
    if (number == max_parts) {
      throw InvalidArgument(fmt::format("an exchange moves at most {} parts of sequences at once", max_parts));
    }
    if (number == content_.parts.size()) content_.parts.push_back(part);
    return static_cast<std::uint16_t>(number);
  }

  static bool has(const Holders& holders, int rank, const SequencePart& part) {
    const auto found = std::ranges::lower_bound(holders, rank, {}, &Holder::rank);
    return found != holders.end() && found->rank == rank && (found->part.is_whole() || found->part == part);
  }

  static bool names(const Holders& holders, int rank) {
    return std::ranges::binary_search(holders, rank, {}, &Holder::rank);
  }

  /// Returns the shortfalls of a key that these ranks want and hold. A shortfall without sources means that no rank
  /// holds the whole.
  std::vector<Shortfall> shortfalls(const Holders& want, const Holders& held, bool cut) {
    std::map<SequencePart, std::vector<int>> lacking;
    for (const Holder& holder : want) {
      const SequencePart part = cut ? holder.part : SequencePart{};
      if (!has(held, holder.rank, part)) lacking[part].push_back(holder.rank);
    }
    std::vector<int> wholes;
    for (const Holder& holder : held) {
      if (holder.part.is_whole()) wholes.push_back(holder.rank);
    }
    std::vector<Shortfall> shortfalls;
    for (const auto& [part, to] : lacking) {
      const std::uint16_t number = part_number(part);
      for (const Share& share : shares(wholes, to)) {
        shortfalls.push_back({lists_.of(share.to), lists_.of(share.sources), number});
      }
    }
    return shortfalls;
  }

  /// Returns shortfalls() for a want and a set of holders, mostly without calling it: most samples have the same want
  /// and holders as a recent one, and if only one rank holds a sample that others want, there is nothing to compute.
  std::span<const Shortfall> shortfalls_of(std::uint32_t want, std::uint32_t held, bool cut) {
    cut = cut && has_parts_[want];
    const auto asked = std::pair(pair_of(want, held), cut);
    Answer& answer = answers_[(want * 7 + held) % answers_.size()];
    if (asked == answer.asked) return answer.shortfalls;
    answer.asked = asked;
    const Holders& holders = directory_.holder_set_at(held);
    if (!cut && holders.size() == 1 && holders[0].part.is_whole() && !names(wants_[want], holders[0].rank)) {
      answer.only = {ranks_of_want_[want], only_candidate(held, holders[0].rank), 0};
      answer.shortfalls = std::span(&answer.only, 1);
    } else {
      const auto [known, is_new] = known_shortfalls_[cut ? 1 : 0].try_emplace(asked.first);
      if (is_new) known->second = shortfalls(wants_[want], holders, cut);
      answer.shortfalls = known->second;
    }
    return answer.shortfalls;
  }

  /// Returns the list that contains only `rank`, the sole holder in the set `held`.
  std::uint32_t only_candidate(std::uint32_t held, int rank) {
    if (held >= candidate_cache_.size()) candidate_cache_.resize(held + 1, 0);
    if (candidate_cache_[held] == 0) candidate_cache_[held] = lists_.of({rank});
    return candidate_cache_[held];
  }

  void find_transfers() {
    lists_.of({});
    parts_.of({});
    for (std::uint32_t want = 0; want < wants_.size(); ++want) {
      std::vector<int> ranks;
      for (const Holder& holder : wants_[want]) ranks.push_back(holder.rank);
      ranks_of_want_.push_back(lists_.of(ranks));
      has_parts_.push_back(!std::ranges::all_of(wants_[want], [](const Holder& h) { return h.part.is_whole(); }));
    }
    transfers_.reserve(want_of_.size() - static_cast<std::size_t>(std::ranges::count(want_of_, 0u)));
    for (std::uint32_t sample = 0; sample < want_of_.size(); ++sample) {
      if (want_of_[sample] != 0) find_transfers_of(sample);
    }
  }

  void find_transfers_of(std::uint32_t sample) {
    const std::uint32_t want = want_of_[sample];
    const std::size_t first = transfers_.size();
    for (std::size_t k = 0; k < keys_.size();) {
      const Key& key = keys_[k];
      const std::uint32_t held = holders_of(sample, key);
      if (held == 0) {
        if (!request_.allow_absent) note_missing(sample, key, "no rank holds it");
        ++k;
        continue;
      }
      // Most samples have all keys on the same holders.
      std::size_t end = k + 1;
      while (end < keys_.size() && keys_[end].cut == key.cut && holders_of(sample, keys_[end]) == held) ++end;
      for (const Shortfall& shortfall : shortfalls_of(want, held, key.cut)) {
        if (shortfall.sources != 0) add(first, sample, shortfall, k, end);
        for (std::size_t i = k; shortfall.sources == 0 && i < end; ++i)
          note_missing(sample, keys_[i], "only parts of it are stored");
      }
      k = end;
    }
  }

  std::uint32_t holders_of(std::uint32_t sample, const Key& key) const {
    return key.column ? directory_.holder_set(sample, *key.column) : 0;
  }

  std::uint64_t bytes_of(std::uint32_t sample, const Key& key, std::uint16_t part) const {
    if (part == 0) return static_cast<std::uint64_t>(directory_.tokens(sample, *key.column)) * key.token_bytes;
    return levada::bytes_of(directory_.keys()[*key.column], content_.parts[part],
                            directory_.lengths(sample, *key.column));
  }

  /// Adds a transfer of keys [k, end) of a sample.
  void add(std::size_t first, std::uint32_t sample, const Shortfall& shortfall, std::size_t k, std::size_t end) {
    std::uint64_t keys = 0, bytes = 0;
    for (; k < end; ++k) {
      keys |= std::uint64_t{1} << k;
      bytes = sum_of(bytes, bytes_of(sample, keys_[k], shortfall.part));
    }
    content_.lower_bound_bytes = sum_of(content_.lower_bound_bytes, bytes);
    for (std::size_t i = first; i < transfers_.size(); ++i) {
      Transfer& transfer = transfers_[i];
      if (transfer.to != shortfall.to || transfer.sources != shortfall.sources || transfer.part != shortfall.part)
        continue;
      transfer.keys |= keys;
      transfer.bytes += bytes;
      return;
    }
    transfers_.push_back({sample, shortfall.to, shortfall.sources, shortfall.part, keys, bytes});
  }

  void note_missing(std::uint32_t sample, const Key& key, std::string_view why) {
    errors_.note(directory_.id(sample), [&] {
      return fmt::format("sample {}, key {} is wanted on {}, but {}", directory_.id(sample), key.name,
                         ranks_text(wants_[want_of_[sample]]), why);
    });
  }

  /// Returns the place of each list when sorted by content, which does not depend on the order of insertion.
  std::vector<std::uint32_t> places_of_lists() const {
    std::vector<std::uint32_t> by_content(lists_.size());
    std::iota(by_content.begin(), by_content.end(), 0u);
    std::ranges::sort(by_content, {}, [this](std::uint32_t i) -> const std::vector<int>& { return lists_[i]; });
    std::vector<std::uint32_t> places(lists_.size());
    for (std::uint32_t i = 0; i < by_content.size(); ++i) places[by_content[i]] = i;
    return places;
  }

  void choose_senders() {
    std::vector<std::vector<int>> source_lists(lists_.size());
    int last = -1;
    for (std::uint32_t list = 0; list < lists_.size(); ++list) {
      if (lists_[list].empty()) continue;
      last = std::max(last, lists_[list].back());
      source_lists[list_places_[list]] = lists_[list];
    }
    std::vector<std::uint64_t> loads(static_cast<std::size_t>(last + 1), 0);
    senders_.resize(transfers_.size());
    std::vector<SendChoice> choices;
    std::vector<std::uint32_t> chosen;
    std::vector<bool> is_choice(lists_.size(), false);
    for (std::uint32_t i = 0; i < transfers_.size(); ++i) {
      const Transfer& transfer = transfers_[i];
      const auto& sources = lists_[transfer.sources];
      if (sources.size() == 1) {
        senders_[i] = sources.front();
        loads[static_cast<std::size_t>(sources.front())] += transfer.bytes;
        continue;
      }
      const std::uint32_t list = list_places_[transfer.sources];
      is_choice[list] = true;
      // The lowest key and the part distinguish transfers of one sample.
      const auto order = directory_.id_hash(transfer.sample) * 0x9e3779b97f4a7c15u +
                         static_cast<std::uint64_t>(std::countr_zero(transfer.keys)) * 65536 +
                         content_.parts[transfer.part].index;
      choices.push_back({transfer.bytes, list, order});
      chosen.push_back(i);
    }
    for (std::size_t list = 0; list < source_lists.size(); ++list) {
      if (!is_choice[list]) source_lists[list].clear();
    }
    const auto senders = assign_senders(choices, source_lists, std::move(loads));
    for (std::size_t i = 0; i < chosen.size(); ++i) senders_[chosen[i]] = senders[i];
  }

  /// Returns the transfers ordered by sender, then by receivers, then by id.
  std::vector<std::uint32_t> ordered() const {
    std::vector<std::uint32_t> order(transfers_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::vector<std::uint32_t> group(transfers_.size());
    for (std::size_t i = 0; i < group.size(); ++i) group[i] = list_places_[transfers_[i].to];
    stable_sort_by(order, group, lists_.size());
    for (std::size_t i = 0; i < group.size(); ++i) group[i] = static_cast<std::uint32_t>(senders_[i]);
    stable_sort_by(order, group, senders_.empty() ? 0 : std::size_t{std::ranges::max(group)} + 1);
    if (!ids_ascend_) sort_multicasts_by_id(order);
    return order;
  }

  bool is_one_multicast(std::uint32_t a, std::uint32_t b) const {
    return senders_[a] == senders_[b] && transfers_[a].to == transfers_[b].to;
  }

  void sort_multicasts_by_id(std::vector<std::uint32_t>& order) const {
    IdPrefix prefix;
    for (const Transfer& transfer : transfers_) prefix.see(directory_.id(transfer.sample));
    std::vector<std::uint64_t> prefixes(transfers_.size());
    for (std::size_t i = 0; i < prefixes.size(); ++i) prefixes[i] = prefix.of(directory_.id(transfers_[i].sample));
    const auto before = [&](std::uint32_t a, std::uint32_t b) {
      if (prefixes[a] != prefixes[b]) return prefixes[a] < prefixes[b];
      const std::uint32_t x = transfers_[a].sample, y = transfers_[b].sample;
      return x != y && directory_.id(x) < directory_.id(y);
    };
    for (auto begin = order.begin(); begin != order.end();) {
      const auto end = std::find_if(begin, order.end(), [&](std::uint32_t i) { return !is_one_multicast(*begin, i); });
      if (!std::is_sorted(begin, end, before)) std::stable_sort(begin, end, before);
      begin = end;
    }
  }

  void write() {
    const auto order = ordered();
    content_.items.reserve(order.size());
    std::vector<std::uint32_t> receivers(lists_.size(), UINT32_MAX);  // those in use, by list
    std::uint64_t begin = 0;                                          // first item of the row
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Transfer& transfer = transfers_[order[i]];
      LEVADA_ASSERT(std::ranges::binary_search(lists_[transfer.sources], senders_[order[i]]) &&
                        !std::ranges::binary_search(lists_[transfer.to], senders_[order[i]]),
                    "a sample is sent by a rank that has it, to ranks that lack it");
      if (i == 0 || !is_one_multicast(order[i - 1], order[i])) {
        std::uint32_t& list = receivers[transfer.to];
        if (list == UINT32_MAX) {
          list = static_cast<std::uint32_t>(content_.receivers.size());
          content_.receivers.push_back(lists_[transfer.to]);
        }
        content_.rows.push_back({.from = senders_[order[i]], .to = list});
        begin = content_.items.size();
      }
      add_item(content_.items, begin, {transfer.sample, transfer.part, transfer.keys});
      content_.rows.back().bytes += transfer.bytes;
      content_.rows.back().end = content_.items.size();
    }
  }

  /// Adds an item, or merges it with an earlier one: keys of one sample with different candidate senders may have been
  /// assigned the same sender.
  static void add_item(std::vector<ExchangeItem>& items, std::uint64_t row_begin, const ExchangeItem& item) {
    for (std::size_t i = items.size(); i > row_begin && items[i - 1].sample == item.sample; --i) {
      if (items[i - 1].part != item.part) continue;
      LEVADA_ASSERT((items[i - 1].keys & item.keys) == 0, "a key of a sample is sent once to a set of ranks");
      items[i - 1].keys |= item.keys;
      return;
    }
    items.push_back(item);
  }

  const SampleDirectory& directory_;
  const ExchangeRequest& request_;
  const std::span<const int> host_of_;
  const bool ids_ascend_;  ///< in the order of the samples' numbers
  ExchangePlan::Content content_;
  FirstError errors_;
  std::vector<Key> keys_;
  Interner<Holders> wants_;
  std::vector<std::uint32_t> want_of_;        ///< by sample; 0 if no rank wants it
  std::vector<std::uint32_t> ranks_of_want_;  ///< by want
  std::vector<bool> has_parts_;               ///< by want
  Interner<std::vector<int>> lists_;
  Interner<SequencePart> parts_;                ///< numbered as in content_.parts
  std::vector<std::uint32_t> list_places_;      ///< by list, its place in the order of contents
  std::vector<std::uint32_t> candidate_cache_;  ///< by set of holders
  std::unordered_map<std::uint64_t, std::vector<Shortfall>> known_shortfalls_[2];  // looked up, never iterated
  struct Answer {
    std::pair<std::uint64_t, bool> asked{UINT64_MAX, false};
    Shortfall only;
    std::span<const Shortfall> shortfalls;
  };
  std::array<Answer, 64> answers_;  ///< direct-mapped cache of shortfalls_of()
  std::vector<Transfer> transfers_;
  std::vector<int> senders_;  ///< by transfer
};

}  // namespace

ExchangePlan plan_exchange(const SampleDirectory& directory, const ExchangeRequest& request,
                           std::span<const int> host_of) {
  std::vector<std::uint32_t> requested;
  for (const Destination& destination : request.destinations) {
    if (!destination.ranks.empty()) directory.find_all(destination.ids, requested);
  }
  return Planner(directory, request, requested, host_of, false).run();
}

ExchangePlan plan_exchange(const SampleDirectory& directory, const ExchangeRequest& request,
                           std::span<const std::uint32_t> requested, std::span<const int> host_of) {
  return Planner(directory, request, requested, host_of, true).run();
}

}  // namespace levada
