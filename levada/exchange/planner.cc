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

#include "levada/base/error.h"
#include "levada/exchange/assignment.h"
#include "levada/exchange/grouping.h"
#include "levada/exchange/wants.h"

namespace levada {
namespace {

constexpr std::size_t most_keys = 64;
/// Of keys and of parts that an ExchangeItem can name.
constexpr std::size_t most_numbers = std::size_t{UINT16_MAX} + 1;

std::uint64_t pair_of(std::uint32_t a, std::uint32_t b) {
  return std::uint64_t{a} << 32 | b;
}

/// Of one sample, what some ranks want alike, lack alike, and can get from the same ranks: keys that go together.
struct Unit {
  std::uint32_t sample = 0;
  std::uint32_t to = 0;       ///< a list of ranks
  std::uint32_t sources = 0;  ///< a list of ranks
  std::uint16_t part = 0;
  std::uint64_t keys = 0;  ///< a bit each
  std::uint64_t bytes = 0;
};

/// What ranks lack of one key of one sample, given who wants and who holds it.
struct Leg {
  std::uint32_t to = 0;
  std::uint32_t sources = 0;
  std::uint16_t part = 0;
};

[[noreturn]] void refuse_size() {
  throw InvalidArgument("2^64 bytes or more cannot be moved at once");
}

std::uint64_t sum_of(std::uint64_t a, std::uint64_t b) {
  const auto sum = checked_add(a, b);
  if (!sum) refuse_size();
  return *sum;
}

class Planner {
 public:
  /// `asked`: the samples' numbers, if they are known.
  Planner(const Ownership& ownership, const ExchangeRequest& request,
          std::optional<std::span<const std::uint32_t>> asked, const ExchangePlanOptions& options)
      : ownership_(ownership), request_(request), options_(options) {
    if (options.chunk_bytes == 0) throw InvalidArgument("messages of no bytes cannot carry anything");
    content_.samples = ownership;
    content_.chunk_bytes = options.chunk_bytes;
    find_keys();
    const int ranks = options.host_of.empty() ? most_ranks : static_cast<int>(options.host_of.size());
    auto found = find_wants(ownership, request, asked, ranks);
    wants_ = std::move(found.lists);
    want_of_ = std::move(found.of_sample);
  }

  ExchangePlan run() {
    find_units();
    errors_.raise();
    list_places_ = places_of_lists();
    choose_senders();
    write();
    if (!content_.delivered_bytes()) refuse_size();
    return ExchangePlan(std::move(content_));
  }

 private:
  struct Key {
    std::string name;
    std::optional<std::size_t> column;  ///< none: nobody has produced it
    bool cut = false;
    std::uint64_t token_bytes = 0;
  };

  void find_keys() {
    std::vector<std::string> names = request_.keys;
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.size() > most_keys) {
      throw InvalidArgument(fmt::format("{} keys cannot be moved at once; at most {} can", names.size(), most_keys));
    }
    const std::set<std::string_view> cut_keys(request_.cut_keys.begin(), request_.cut_keys.end());
    for (const std::string_view name : cut_keys) {
      if (std::ranges::binary_search(names, name)) continue;
      throw InvalidArgument(fmt::format("key {} is to be cut, but is not among the keys that are to move", name));
    }
    if (ownership_.keys().size() > most_numbers) {
      throw InvalidArgument(
          fmt::format("{} keys are known, but a plan has numbers for {}", ownership_.keys().size(), most_numbers));
    }
    for (const std::string& name : names) {
      const auto column = ownership_.find_key(name);
      const std::uint64_t token_bytes = column ? ownership_.keys()[*column].bytes(1).value_or(0) : 0;
      keys_.push_back({name, column, cut_keys.contains(name), token_bytes});
    }
  }

  int host(int rank) const {
    const auto at = static_cast<std::size_t>(rank);
    return at < options_.host_of.size() ? options_.host_of[at] : 0;
  }

  /// Receivers, and the holders of which one is to send to them.
  struct Share {
    std::vector<int> to, sources;
  };

  /// Receivers on the host of a holder get a sample from there, so that it does not cross to a host that has it. The
  /// host with the most of these receivers also sends to all hosts without a holder, once.
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
    if (number == most_numbers) {
      throw InvalidArgument(fmt::format("more than {} parts of sequences cannot be moved at once", most_numbers));
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

  /// What is to be sent where ranks want and hold a key like this. A leg without sources: nobody has the whole.
  std::vector<Leg> legs(const Holders& want, const Holders& held, bool cut) {
    std::map<SequencePart, std::vector<int>> lacking;
    for (const Holder& holder : want) {
      const SequencePart part = cut ? holder.part : SequencePart{};
      if (!has(held, holder.rank, part)) lacking[part].push_back(holder.rank);
    }
    std::vector<int> wholes;
    for (const Holder& holder : held) {
      if (holder.part.is_whole()) wholes.push_back(holder.rank);
    }
    std::vector<Leg> legs;
    for (const auto& [part, to] : lacking) {
      const std::uint16_t number = part_number(part);
      for (const Share& share : shares(wholes, to)) {
        legs.push_back({lists_.of(share.to), lists_.of(share.sources), number});
      }
    }
    return legs;
  }

  /// legs() of a want and a set of holders, mostly without asking it: samples mostly are wanted and held as one of the
  /// last was, and where one rank alone holds a sample that others want there is nothing to find out.
  std::span<const Leg> legs_of(std::uint32_t want, std::uint32_t held, bool cut) {
    cut = cut && has_parts_[want];
    const auto asked = std::pair(pair_of(want, held), cut);
    Answer& answer = answers_[(want * 7 + held) % answers_.size()];
    if (asked == answer.asked) return answer.legs;
    answer.asked = asked;
    const Holders& holders = ownership_.holder_set_at(held);
    if (!cut && holders.size() == 1 && holders[0].part.is_whole() && !names(wants_[want], holders[0].rank)) {
      answer.only = {ranks_of_want_[want], alone(held, holders[0].rank), 0};
      answer.legs = std::span(&answer.only, 1);
    } else {
      const auto [known, is_new] = known_legs_[cut ? 1 : 0].try_emplace(asked.first);
      if (is_new) known->second = legs(wants_[want], holders, cut);
      answer.legs = known->second;
    }
    return answer.legs;
  }

  /// The list of a rank that alone is in a set of holders.
  std::uint32_t alone(std::uint32_t held, int rank) {
    if (held >= alone_.size()) alone_.resize(held + 1, 0);
    if (alone_[held] == 0) alone_[held] = lists_.of({rank});
    return alone_[held];
  }

  void find_units() {
    lists_.of({});
    parts_.of({});
    for (std::uint32_t want = 0; want < wants_.size(); ++want) {
      std::vector<int> ranks;
      for (const Holder& holder : wants_[want]) ranks.push_back(holder.rank);
      ranks_of_want_.push_back(lists_.of(ranks));
      has_parts_.push_back(!std::ranges::all_of(wants_[want], [](const Holder& h) { return h.part.is_whole(); }));
    }
    for (std::uint32_t sample = 0; sample < want_of_.size(); ++sample) {
      if (want_of_[sample] != 0) find_units_of(sample);
    }
  }

  void find_units_of(std::uint32_t sample) {
    const std::uint32_t want = want_of_[sample];
    const std::size_t first = units_.size();
    for (std::size_t k = 0; k < keys_.size();) {
      const Key& key = keys_[k];
      const std::uint32_t held = holders_of(sample, key);
      if (held == 0) {
        if (!request_.allow_absent) refuse(sample, key, "no rank has that key of it");
        ++k;
        continue;
      }
      // Mostly all keys of a sample are held alike.
      std::size_t end = k + 1;
      while (end < keys_.size() && keys_[end].cut == key.cut && holders_of(sample, keys_[end]) == held) ++end;
      for (const Leg& leg : legs_of(want, held, key.cut)) {
        if (leg.sources != 0) add(first, sample, leg, k, end);
        for (std::size_t i = k; leg.sources == 0 && i < end; ++i) refuse(sample, keys_[i], "only parts of it are held");
      }
      k = end;
    }
  }

  std::uint32_t holders_of(std::uint32_t sample, const Key& key) const {
    return key.column ? ownership_.holder_set(sample, *key.column) : 0;
  }

  std::uint64_t bytes_of(std::uint32_t sample, const Key& key, std::uint16_t part) const {
    if (part == 0) return static_cast<std::uint64_t>(ownership_.tokens(sample, *key.column)) * key.token_bytes;
    return content_.bytes({sample, static_cast<std::uint16_t>(*key.column), part});
  }

  /// Keys [k, end) of a sample.
  void add(std::size_t first, std::uint32_t sample, const Leg& leg, std::size_t k, std::size_t end) {
    std::uint64_t keys = 0, bytes = 0;
    for (; k < end; ++k) {
      keys |= std::uint64_t{1} << k;
      bytes = sum_of(bytes, bytes_of(sample, keys_[k], leg.part));
    }
    content_.lower_bound_bytes = sum_of(content_.lower_bound_bytes, bytes);
    for (std::size_t i = first; i < units_.size(); ++i) {
      Unit& unit = units_[i];
      if (unit.to != leg.to || unit.sources != leg.sources || unit.part != leg.part) continue;
      unit.keys |= keys;
      unit.bytes += bytes;
      return;
    }
    units_.push_back({sample, leg.to, leg.sources, leg.part, keys, bytes});
  }

  void refuse(std::uint32_t sample, const Key& key, std::string_view why) {
    errors_.note(ownership_.id(sample), [&] {
      return fmt::format("sample {}, key {} is wanted on {}, but {}", ownership_.id(sample), key.name,
                         ranks_text(wants_[want_of_[sample]]), why);
    });
  }

  /// Lists by their content: `order[i]` is the place of list i, whatever the order they were met in.
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
    senders_.resize(units_.size());
    std::vector<SendChoice> choices;
    std::vector<std::uint32_t> chosen;
    std::vector<bool> is_choice(lists_.size(), false);
    for (std::uint32_t i = 0; i < units_.size(); ++i) {
      const Unit& unit = units_[i];
      const auto& sources = lists_[unit.sources];
      if (sources.size() == 1) {
        senders_[i] = sources.front();
        loads[static_cast<std::size_t>(sources.front())] += unit.bytes;
        continue;
      }
      const std::uint32_t list = list_places_[unit.sources];
      is_choice[list] = true;
      // The lowest key and the part tell units of one sample apart.
      const auto order = ownership_.id_hash(unit.sample) * 0x9e3779b97f4a7c15u +
                         static_cast<std::uint64_t>(std::countr_zero(unit.keys)) * 65536 +
                         content_.parts[unit.part].index;
      choices.push_back({unit.bytes, list, order});
      chosen.push_back(i);
    }
    for (std::size_t list = 0; list < source_lists.size(); ++list) {
      if (!is_choice[list]) source_lists[list].clear();
    }
    const auto senders = assign_senders(choices, source_lists, std::move(loads));
    for (std::size_t i = 0; i < chosen.size(); ++i) senders_[chosen[i]] = senders[i];
  }

  /// Units by sender, then by receivers in their order, then by id.
  std::vector<Grouped> ordered() const {
    std::vector<Grouped> units(units_.size());
    for (std::uint32_t i = 0; i < units_.size(); ++i) {
      const auto group = pair_of(static_cast<std::uint32_t>(senders_[i]), list_places_[units_[i].to]);
      units[i] = {.group = group, .sample = units_[i].sample, .unit = i};
    }
    return by_group_and_id(std::move(units), ownership_);
  }

  void write() {
    const auto places = ordered();
    content_.items.reserve(units_.size() * std::max<std::size_t>(1, keys_.size()));
    std::vector<std::uint32_t> receivers(lists_.size(), UINT32_MAX);  // those in use, by list
    std::vector<std::pair<int, std::uint16_t>> parts;  // of one sample in one multicast, by number of key
    for (std::size_t i = 0; i < places.size();) {
      const Grouped& place = places[i];
      const std::uint32_t sample = place.sample;
      if (i == 0 || place.group != places[i - 1].group) {
        const std::uint32_t list = units_[place.unit].to;
        if (receivers[list] == UINT32_MAX) {
          receivers[list] = static_cast<std::uint32_t>(content_.receivers.size());
          content_.receivers.push_back(lists_[list]);
        }
        content_.rows.push_back({.from = senders_[place.unit], .to = receivers[list]});
      }
      parts.clear();
      for (; i < places.size() && places[i].group == place.group && places[i].sample == sample; ++i) {
        const Unit& unit = units_[places[i].unit];
        for (std::uint64_t keys = unit.keys; keys != 0; keys &= keys - 1) {
          parts.emplace_back(std::countr_zero(keys), unit.part);
        }
        content_.rows.back().bytes += unit.bytes;
      }
      if (!std::ranges::is_sorted(parts)) std::ranges::sort(parts);
      for (const auto& [k, part] : parts) {
        const std::size_t column = *keys_[static_cast<std::size_t>(k)].column;
        content_.items.push_back({sample, static_cast<std::uint16_t>(column), part});
      }
      content_.rows.back().end = content_.items.size();
    }
  }

  const Ownership& ownership_;
  const ExchangeRequest& request_;
  const ExchangePlanOptions& options_;
  ExchangePlan::Content content_;
  FirstError errors_;
  std::vector<Key> keys_;
  Numbered<Holders> wants_;
  std::vector<std::uint32_t> want_of_;        ///< by sample; 0 is nobody
  std::vector<std::uint32_t> ranks_of_want_;  ///< their list
  std::vector<bool> has_parts_;               ///< by want
  Numbered<std::vector<int>> lists_;
  Numbered<SequencePart> parts_;                                       ///< as content_.parts has them
  std::vector<std::uint32_t> list_places_;                             ///< in the order of their content
  std::vector<std::uint32_t> alone_;                                   ///< by set of holders
  std::unordered_map<std::uint64_t, std::vector<Leg>> known_legs_[2];  // looked up, never walked over
  struct Answer {
    std::pair<std::uint64_t, bool> asked{UINT64_MAX, false};
    Leg only;
    std::span<const Leg> legs;
  };
  std::array<Answer, 64> answers_;  ///< what legs_of() has given, the last of each place
  std::vector<Unit> units_;
  std::vector<int> senders_;  ///< by unit
};

}  // namespace

ExchangePlan plan_exchange(const Ownership& ownership, const ExchangeRequest& request,
                           const ExchangePlanOptions& options) {
  return Planner(ownership, request, std::nullopt, options).run();
}

ExchangePlan plan_exchange(const Ownership& ownership, const ExchangeRequest& request,
                           std::span<const std::uint32_t> asked, const ExchangePlanOptions& options) {
  return Planner(ownership, request, asked, options).run();
}

}  // namespace levada
