#include "levada/exchange/wants.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "levada/exchange/planner.h"
#include "levada/plan/text.h"

namespace levada {

void FirstError::raise() const {
  if (count_ == 0) return;
  throw InvalidArgument(count_ == 1 ? message_ : fmt::format("{} (the first of {} errors)", message_, count_));
}

std::string ranks_text(const Holders& holders) {
  std::vector<int> ranks;
  for (const Holder& holder : holders) ranks.push_back(holder.rank);
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", rank_ranges(ranks));
}

namespace {

/// Marks a rank that is to receive different parts of one sample.
constexpr SequencePart different_parts{0, 0};

void check_destinations(const ExchangeRequest& request, int ranks) {
  std::set<SequencePart> no_parts;
  std::set<int> no_ranks;
  for (const Destination& destination : request.destinations) {
    const SequencePart& part = destination.part;
    if (part.index >= part.count) no_parts.insert(part);
    for (const int rank : destination.ranks) {
      if (rank < 0 || rank >= ranks) no_ranks.insert(rank);
    }
  }
  if (!no_parts.empty()) {
    throw InvalidArgument(
        fmt::format("a destination requests {}, but the index of a part must be less than the number of parts",
                    no_parts.begin()->to_string()));
  }
  if (!no_ranks.empty()) {
    throw InvalidArgument(
        fmt::format("a destination names rank {}; the ranks are 0 to {}", *no_ranks.begin(), ranks - 1));
  }
}

/// Numbers the lists of ranks that want a sample, and merges them.
class Lists {
 public:
  explicit Lists(Interner<Holders>& lists) : lists_(lists) { lists_.of({}); }

  std::uint32_t of(const Destination& destination) {
    Holders want;
    const SequencePart part = destination.part.is_whole() ? SequencePart{} : destination.part;
    for (const int rank : destination.ranks) want.push_back({rank, part});
    std::ranges::sort(want);
    want.erase(std::unique(want.begin(), want.end()), want.end());
    return lists_.of(want);
  }

  /// Returns the union of both lists. A rank that wants the whole needs no part.
  std::uint32_t merged(std::uint32_t a, std::uint32_t b) {
    if (a == 0 || a == b) return b;
    const auto [known, is_new] = merged_.try_emplace(std::uint64_t{a} << 32 | b);
    if (!is_new) return known->second;
    Holders all = lists_[a];
    for (const Holder& holder : lists_[b]) {
      const auto place = std::ranges::lower_bound(all, holder.rank, {}, &Holder::rank);
      if (place == all.end() || place->rank != holder.rank) {
        all.insert(place, holder);
      } else if (holder.part.is_whole()) {
        *place = holder;
      } else if (place->part != holder.part && !place->part.is_whole()) {
        place->part = different_parts;
      }
    }
    return known->second = lists_.of(all);
  }

 private:
  Interner<Holders>& lists_;
  std::unordered_map<std::uint64_t, std::uint32_t> merged_;  // looked up, never iterated
};

void note_different_parts(const Wants& wants, const SampleDirectory& directory, FirstError& errors) {
  std::map<std::uint32_t, Holders> differing;  // ranks, by list
  for (std::uint32_t list = 0; list < wants.lists.size(); ++list) {
    for (const Holder& holder : wants.lists[list]) {
      if (holder.part == different_parts) differing[list].push_back(holder);
    }
  }
  for (std::size_t sample = 0; !differing.empty() && sample < wants.of_sample.size(); ++sample) {
    const auto found = differing.find(wants.of_sample[sample]);
    if (found == differing.end()) continue;
    errors.note(directory.id(sample), [&] {
      return fmt::format("different parts of sample {} are wanted on {}", directory.id(sample),
                         ranks_text(found->second));
    });
  }
}

std::string keys_text(const ExchangeRequest& request) {
  const std::set<std::string_view> keys(request.keys.begin(), request.keys.end());
  if (keys.empty()) return {};
  return fmt::format(", {} {}", keys.size() == 1 ? "key" : "keys", fmt::join(keys, ", "));
}

}  // namespace

Wants find_wants(const SampleDirectory& directory, const ExchangeRequest& request,
                 std::span<const std::uint32_t> requested, int ranks) {
  check_destinations(request, ranks);
  Wants wants;
  wants.of_sample.assign(directory.size(), 0);
  Lists lists(wants.lists);
  std::map<std::string_view, std::uint32_t> unheld;
  std::size_t next = 0;
  for (const Destination& destination : request.destinations) {
    const std::uint32_t want = lists.of(destination);
    if (want == 0) continue;  // its ids have no numbers
    for (const std::string& id : destination.ids) {
      const std::uint32_t sample = requested[next++];
      std::uint32_t& known = sample == no_sample ? unheld[id] : wants.of_sample[sample];
      known = lists.merged(known, want);
    }
  }
  FirstError errors;
  for (const auto& [id, want] : unheld) {
    errors.note(id, [&, &id = id, want = want] {  // clang 14 cannot capture structured bindings directly
      return fmt::format("sample {}{} is wanted on {}, but no rank holds it", id, keys_text(request),
                         ranks_text(wants.lists[want]));
    });
  }
  note_different_parts(wants, directory, errors);
  errors.raise();
  return wants;
}

}  // namespace levada
