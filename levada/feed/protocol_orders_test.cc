// Explores every order of events of small feeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <set>
#include <string>

#include "levada/feed/protocol.h"

namespace levada::feed_protocol {
namespace {

/// Returns a reader's digest of a round, whose content equals that of the other readers or not.
UnitDigest content_of_round(bool is_common) {
  return {.unit = 0, .structure = 1, .fields = {{"tokens", is_common ? 0U : 1U}}};
}

std::vector<int> ranks_of(std::size_t readers) {
  std::vector<int> ranks(readers);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// A feed without I/O: readers, lead and ranks are values and every queue is explicit, so that all orders of events can
/// be explored.
struct Model {
  struct Reader {
    std::int64_t length = 0;           ///< rounds of its data
    bool fails = false;                ///< at the end of its data
    std::int64_t differs_from = 1000;  ///< the first round whose content differs from the other readers'
    std::int64_t sent = 0;
    bool stopped = false;
  };
  struct Rank {
    Follower follower;
    std::int64_t data = 0;  ///< batches sent to it and not received
    std::deque<Event> decisions;
    bool left = false;
    bool was_abandoned = false;  ///< got an error
    bool is_over() const { return left || was_abandoned || follower.finished(); }
  };

  std::vector<Reader> readers;
  std::vector<Rank> ranks;  ///< rank i is served by reader i % readers
  Lead lead;
  std::deque<Event> reports;  ///< one queue: the order in which the lead receives reports is explored as sending order
  std::int64_t sent_granted = 0;
  bool sent_end = false;
  std::optional<Left> sent_departure;
  int depth = 1;
  int micro_batches = 1;  ///< rounds per step
  std::set<int> may_leave;
  std::string reason;                  ///< with which ranks leave
  std::optional<std::int64_t> leaves;  ///< the only round at which they all leave; empty: at any round
  bool may_stop = false;               ///< whether rank 0 may ask for a stop
  bool asked_stop = false;
  std::set<std::string> applied;  ///< the lead's reports so far: with its end, they determine its state

  Model(std::vector<Reader> the_readers, int rank_count, int window)
      : readers(std::move(the_readers)), lead({.ranks = ranks_of(readers.size())}), depth(window) {
    for (int i = 0; i < rank_count; ++i) ranks.push_back({.follower = Follower(readers.size() > 1)});
  }

  FeedPosition after(std::int64_t rounds) const {
    return {.round = rounds, .step = rounds / micro_batches, .micro = rounds % micro_batches};
  }
  bool has_room(std::size_t reader) const {
    for (std::size_t i = reader; i < ranks.size(); i += readers.size()) {
      if (!ranks[i].left && !ranks[i].was_abandoned && ranks[i].data >= depth) return false;
    }
    return true;
  }

  /// Returns all states that one event leads to.
  std::vector<Model> successors() const;
  std::string key() const;
  void report(Event event) {
    // A single reader is the lead, and its reports need no queue.
    if (readers.size() == 1) apply_report(event);
    else reports.push_back(std::move(event));
  }
  void apply_report(const Event& event) {
    applied.emplace(as_text(encode(event)));
    if (const auto* ready = std::get_if<Ready>(&event)) lead.apply(*ready);
    if (const auto* stopped = std::get_if<Stopped>(&event)) lead.apply(*stopped);
    if (const auto* asked = std::get_if<StopAsked>(&event)) lead.apply(*asked);
    if (const auto* gone = std::get_if<Left>(&event)) lead.apply(*gone);
  }
  /// Rank 0 leads until its feed is over; if it leaves first, it first reports that to all ranks.
  bool lead_is_gone() const {
    return ranks[0].is_over() &&
           (!ranks[0].left || (sent_departure && sent_departure->at.round <= ranks[0].follower.at().round));
  }
  bool all_over() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.is_over(); });
  }
};

std::vector<Model> Model::successors() const {
  std::vector<Model> next;
  const auto branch = [&](auto&& change) {
    next.push_back(*this);
    change(next.back());
  };
  for (std::size_t r = 0; r < readers.size(); ++r) {
    const Reader& reader = readers[r];
    // A rank that has left stops reading.
    const bool leads_to_end = (r == 0 && lead.end()) || ranks[r].is_over();
    if (reader.stopped || leads_to_end) continue;
    const int number = static_cast<int>(r);
    if (reader.sent == reader.length) {
      branch([&](Model& m) {
        m.readers[r].stopped = true;
        FeedEnd end{.at = after(reader.length), .rank = number, .message = {}};
        if (reader.fails) end.cause = FeedEnd::Cause::failed;
        m.report(Stopped{number, end});
      });
    } else if (has_room(r)) {
      branch([&](Model& m) {
        for (std::size_t i = r; i < ranks.size(); i += readers.size()) m.ranks[i].data += m.ranks[i].is_over() ? 0 : 1;
        const auto sent = ++m.readers[r].sent;
        m.report(Ready{number, after(sent), 0, {content_of_round(sent <= reader.differs_from)}});
      });
    }
  }
  if (!reports.empty() && !lead_is_gone()) {
    branch([&](Model& m) {
      m.apply_report(m.reports.front());
      m.reports.pop_front();
    });
  }
  const bool grant = readers.size() > 1 && lead.granted() > sent_granted;
  const auto broadcast = [&](const Event& event, auto&& change) {
    branch([&](Model& m) {
      for (Rank& rank : m.ranks) rank.decisions.push_back(event);
      change(m);
    });
  };
  if (lead_is_gone()) {
  } else if (!sent_end && lead.end()) {
    broadcast(Ended{*lead.end()}, [](Model& m) { m.sent_end = true; });
  } else if (lead.departure() && lead.departure() != sent_departure) {
    broadcast(*lead.departure(), [](Model& m) { m.sent_departure = m.lead.departure(); });
  } else if (!sent_end && grant) {
    broadcast(Granted{lead.granted()}, [](Model& m) { m.sent_granted = m.lead.granted(); });
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Rank& rank = ranks[i];
    if (!rank.decisions.empty() && !rank.is_over()) {
      branch([&](Model& m) {
        const Event event = rank.decisions.front();
        m.ranks[i].decisions.pop_front();
        if (const auto* granted = std::get_if<Granted>(&event)) m.ranks[i].follower.apply(*granted);
        if (const auto* ended = std::get_if<Ended>(&event)) m.ranks[i].follower.apply(*ended);
        if (const auto* gone = std::get_if<Left>(&event)) m.ranks[i].follower.apply(*gone);
      });
    }
    if (rank.is_over()) continue;
    const bool leaves_here =
        may_leave.contains(static_cast<int>(i)) && (!leaves || rank.follower.at().round == *leaves);
    if (leaves_here) {
      branch([&](Model& m) {
        m.ranks[i].left = true;
        m.ranks[i].data = 0;
        m.report(Left{static_cast<int>(i), rank.follower.at(), reason});
      });
      if (leaves) continue;  // it asks for no further round
    }
    if (rank.data > 0 && rank.follower.may_receive()) {
      branch([&](Model& m) {
        --m.ranks[i].data;
        m.ranks[i].follower.advance(after(rank.follower.at().round + 1).micro == 0);
      });
    }
    const bool needs_lead = !rank.follower.finished() && !rank.follower.may_receive();
    const bool needs_reader = rank.follower.may_receive() && rank.data == 0 && ranks[i % readers.size()].is_over();
    const bool is_stranded = lead_is_gone() && rank.decisions.empty() && (needs_lead || needs_reader);
    if (rank.follower.is_abandoned() || is_stranded) branch([&](Model& m) { m.ranks[i].was_abandoned = true; });
    if (may_stop && i == 0 && !asked_stop) {
      branch([&](Model& m) {
        m.asked_stop = true;
        m.report(StopAsked{0});
      });
    }
  }
  return next;
}

std::string Model::key() const {
  std::string key;
  const auto add = [&](const Event& event) { key += as_text(encode(event)); };
  const auto number = [&](std::int64_t value) { key += std::to_string(value) + ","; };
  for (const Reader& reader : readers) number(reader.sent * 2 + (reader.stopped ? 1 : 0));
  for (const Event& event : reports) add(event);
  key += '/';
  for (const std::string& event : applied) key += event;
  number(lead.granted());
  number(sent_granted * 4 + (sent_end ? 1 : 0) + (asked_stop ? 2 : 0));
  if (lead.end()) add(Ended{*lead.end()});
  if (lead.departure()) add(*lead.departure());
  if (sent_departure) add(*sent_departure);
  for (const Rank& rank : ranks) {
    key += '|';
    number(rank.follower.at().round);
    number(rank.data * 8 + (rank.was_abandoned ? 4 : 0) + (rank.left ? 2 : 0) + (rank.follower.may_receive() ? 1 : 0));
    if (rank.follower.end()) add(Ended{*rank.follower.end()});
    if (rank.follower.departure()) add(*rank.follower.departure());
    key += '/';
    for (const Event& event : rank.decisions) add(event);
  }
  return key;
}

/// The result of a feed.
struct Outcome {
  std::int64_t max_rounds = 0;  ///< rounds that any rank received
  bool any_left = false;
  bool any_abandoned = false;
  auto operator<=>(const Outcome&) const = default;
};

/// Explores every order of events. If nothing more can happen, no rank may still be waiting; ranks that reached an end
/// must have the lead's; no rank may have received a round at which, to its knowledge, another rank had left. Returns
/// the results.
std::set<Outcome> explore(const Model& start) {
  std::set<std::string> seen;
  std::set<Outcome> outcomes;
  std::vector<Model> stack{start};
  while (!stack.empty()) {
    const Model state = std::move(stack.back());
    stack.pop_back();
    if (!seen.insert(state.key()).second) continue;
    auto next = state.successors();
    if (next.empty()) {
      EXPECT_TRUE(state.all_over()) << "a deadlock: " << state.key();
      if (!state.all_over()) return outcomes;
      Outcome outcome;
      for (const Model::Rank& rank : state.ranks) {
        outcome.max_rounds = std::max(outcome.max_rounds, rank.follower.at().round);
        outcome.any_left |= rank.left;
        outcome.any_abandoned |= rank.was_abandoned;
        if (rank.left || rank.was_abandoned) continue;
        EXPECT_EQ(*rank.follower.end(), *state.lead.end());
        EXPECT_EQ(rank.follower.at(), state.lead.end()->at);
      }
      EXPECT_TRUE(outcome.any_left || !outcome.any_abandoned);
      outcomes.insert(outcome);
    }
    for (Model& model : next) stack.push_back(std::move(model));
  }
  return outcomes;
}

using Outcomes = std::set<Outcome>;

Outcomes ends_at(std::int64_t round) {
  return {{.max_rounds = round}};
}

TEST(FeedProtocolExplored, EveryRankReceivesAllRoundsOfOneReader) {
  for (const int depth : {1, 2}) {
    EXPECT_EQ(explore(Model({{.length = 4}}, 3, depth)), ends_at(4));
    EXPECT_EQ(explore(Model({{.length = 0}}, 3, depth)), ends_at(0));
    EXPECT_EQ(explore(Model({{.length = 2, .fails = true}}, 3, depth)), ends_at(2));
  }
}

TEST(FeedProtocolExplored, SeveralReadersEndWithTheShortest) {
  EXPECT_EQ(explore(Model({{.length = 3}, {.length = 3}}, 2, 1)), ends_at(3));
  EXPECT_EQ(explore(Model({{.length = 3}, {.length = 1}}, 2, 2)), ends_at(1));
  EXPECT_EQ(explore(Model({{.length = 1, .fails = true}, {.length = 2}}, 2, 1)), ends_at(1));
  EXPECT_EQ(explore(Model({{.length = 2}, {.length = 2}, {.length = 1, .fails = true}}, 3, 1)), ends_at(1));
}

TEST(FeedProtocolExplored, NoRankReceivesARoundWhoseContentDiffersBetweenReaders) {
  for (const int depth : {1, 2}) {
    EXPECT_EQ(explore(Model({{.length = 3}, {.length = 3, .differs_from = 1}}, 2, depth)), ends_at(1));
    EXPECT_EQ(explore(Model({{.length = 3, .differs_from = 0}, {.length = 3}}, 2, depth)), ends_at(0));
    EXPECT_EQ(explore(Model({{.length = 1}, {.length = 3, .differs_from = 1}}, 2, depth)), ends_at(1));
  }
  EXPECT_EQ(explore(Model({{.length = 2}, {.length = 2}, {.length = 2, .differs_from = 1}}, 3, 1)), ends_at(1));
}

TEST(FeedProtocolExplored, ARequestedStopIsTheSameEndOnAllRanks) {
  for (const std::size_t readers : {1, 2}) {
    Model model(std::vector<Model::Reader>(readers, {.length = 2}), 2, 1);
    model.may_stop = true;
    for (const Outcome& outcome : explore(model)) EXPECT_FALSE(outcome.any_left || outcome.any_abandoned);
  }
}

TEST(FeedProtocolExplored, ARequestedStopNeverDividesAStep) {
  for (const std::size_t readers : {1, 2}) {
    Model model(std::vector<Model::Reader>(readers, {.length = 4}), 2, 1);
    model.may_stop = true;
    model.micro_batches = 2;
    const auto outcomes = explore(model);
    EXPECT_EQ(outcomes, (Outcomes{{.max_rounds = 0}, {.max_rounds = 2}, {.max_rounds = 4}})) << readers;
  }
}

TEST(FeedProtocolExplored, LeavingTogetherAtOneStepIsNeverAnError) {
  for (const std::size_t readers : {1, 2}) {
    for (const char* reason : {"", "StopTraining: enough"}) {
      Model model(std::vector<Model::Reader>(readers, {.length = 3}), 3, 2);
      model.may_leave = {0, 1, 2};
      model.leaves = 2;
      model.reason = reason;
      EXPECT_EQ(explore(model), (Outcomes{{.max_rounds = 2, .any_left = true}})) << readers << reason;
    }
  }
}

TEST(FeedProtocolExplored, ADepartureIsAnErrorOnContinuingRanksUnlessTheyHaveEnded) {
  for (const std::size_t readers : {1, 2}) {
    for (const int leaver : {0, 1, 2}) {
      Model model(std::vector<Model::Reader>(readers, {.length = 3}), 3, 1);
      model.may_leave = {leaver};
      const auto outcomes = explore(model);
      EXPECT_TRUE(outcomes.contains({.max_rounds = 3})) << "nobody left";
      EXPECT_TRUE(outcomes.contains({.max_rounds = 0, .any_left = true, .any_abandoned = true}));
    }
  }
}

TEST(FeedProtocolExplored, ADepartureWithAReasonBeforeTheEndNeverLooksLikeTheEnd) {
  // The leaver is not a reader, and the others wait for it at each step, as ranks that train together do.
  Model model({{.length = 3}}, 2, 1);
  model.may_leave = {1};
  model.leaves = 2;
  model.reason = "ValueError: no";
  for (const Outcome& outcome : explore(model)) {
    EXPECT_TRUE(outcome.any_left);
    EXPECT_TRUE(outcome.any_abandoned || outcome.max_rounds == 3) << "rank 0 had been given all by then";
  }
}

}  // namespace
}  // namespace levada::feed_protocol
