#include "levada/feed/protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <string>

namespace levada::feed_protocol {
namespace {

FeedEnd exhausted(std::int64_t step, int rank = 0) {
  return {.step = step, .rank = rank, .message = {}};
}

TEST(FeedProtocol, EveryEventCrossesTheWireUnchanged) {
  const FeedEnd failed{
      .cause = FeedEnd::Cause::failed, .step = 7, .rank = 3, .error = ErrorKind::timeout, .message = "no"};
  for (const Event& event :
       {Event(Ready{2, 9}), Event(Stopped{1, failed}), Event(Left{5}), Event(Granted{11}), Event(Ended{failed})}) {
    EXPECT_EQ(decode(encode(event)), event);
  }
}

TEST(FeedProtocol, RefusesBytesThatAreNoEvent) {
  const Bytes good = encode(Ended{exhausted(4)});
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(decode(ByteView(good).first(size)), CorruptMessage) << size;
  }
  Bytes bad = good;
  bad[0] = std::byte{9};
  EXPECT_THROW(decode(bad), CorruptMessage);
  bad = good;
  bad.push_back(std::byte{0});
  EXPECT_THROW(decode(bad), CorruptMessage);
  EXPECT_THROW(decode(encode(Granted{-1})), CorruptMessage);
}

TEST(FeedProtocol, GrantsWhatEveryReaderHasSent) {
  Lead lead(2);
  lead.apply(Ready{0, 3});
  EXPECT_EQ(lead.granted(), 0);
  lead.apply(Ready{1, 2});
  EXPECT_EQ(lead.granted(), 2);
}

TEST(FeedProtocol, EndsWhereTheShortestReaderEnds) {
  Lead lead(2);
  lead.apply(Ready{0, 5});
  lead.apply(Ready{1, 1});
  lead.apply(Stopped{0, exhausted(2)});
  EXPECT_FALSE(lead.end()) << "reader 1 has not come so far";
  lead.apply(Ready{1, 2});
  ASSERT_TRUE(lead.end());
  EXPECT_EQ(lead.end()->step, 2);
  EXPECT_EQ(lead.granted(), 2);
}

TEST(FeedProtocol, AFailureIsToldRatherThanAnEndAtTheSameStep) {
  Lead lead(2);
  lead.apply(Stopped{0, exhausted(0, 0)});
  EXPECT_EQ(lead.end()->cause, FeedEnd::Cause::exhausted);

  Lead other(2);
  other.apply(Ready{0, 1});
  other.apply(Stopped{0, exhausted(1, 0)});
  other.apply(Stopped{1, {.cause = FeedEnd::Cause::failed, .step = 1, .rank = 1, .message = "broken"}});
  EXPECT_FALSE(other.end());
  other.apply(Ready{1, 1});
  EXPECT_EQ(other.end()->message, "broken");
}

TEST(FeedProtocol, AnEndOnceToldStays) {
  Lead lead(1);
  lead.apply(Ready{0, 2});
  lead.apply(Left{3});
  EXPECT_EQ(*lead.end(), (FeedEnd{.cause = FeedEnd::Cause::left, .step = 2, .rank = 3, .message = {}}));
  lead.apply(Left{1});
  lead.apply(Stopped{0, exhausted(2)});
  EXPECT_EQ(lead.end()->rank, 3);
}

/// A feed without I/O: readers, lead and ranks as values, every queue explicit, so that all orders of what can happen
/// can be gone through.
struct Model {
  struct Reader {
    std::int64_t length = 0;  ///< rounds of its data
    bool fails = false;       ///< at the end of them
    std::int64_t sent = 0;
    bool stopped = false;
  };
  struct Rank {
    Follower follower;
    std::int64_t data = 0;  ///< batches sent to it and not taken
    std::deque<Event> decisions;
    bool left = false;
  };

  std::vector<Reader> readers;
  std::vector<Rank> ranks;  ///< rank i is served by reader i % readers
  Lead lead;
  std::deque<Event>
      reports;  ///< one queue: the order in which the lead hears several readers is explored as sending order
  std::int64_t granted_told = 0;
  bool end_told = false;
  int depth = 1;
  std::set<int> may_leave;
  std::set<std::string> heard;  ///< what the lead has been told: with its end, all that its state depends on

  Model(std::vector<Reader> the_readers, int rank_count, int window)
      : readers(std::move(the_readers)), lead(static_cast<int>(readers.size())), depth(window) {
    for (int i = 0; i < rank_count; ++i) ranks.push_back({.follower = Follower(readers.size() > 1)});
  }

  bool has_room(std::size_t reader) const {
    for (std::size_t i = reader; i < ranks.size(); i += readers.size()) {
      if (!ranks[i].left && ranks[i].data >= depth) return false;
    }
    return true;
  }

  /// All states that one thing happening leads to.
  std::vector<Model> successors() const;
  std::string key() const;
  void report(Event event) {
    // A lone reader is the lead and tells itself at once.
    if (readers.size() == 1) hear(event);
    else reports.push_back(std::move(event));
  }
  void hear(const Event& event) {
    heard.emplace(as_text(encode(event)));
    if (const auto* ready = std::get_if<Ready>(&event)) lead.apply(*ready);
    if (const auto* stopped = std::get_if<Stopped>(&event)) lead.apply(*stopped);
    if (const auto* gone = std::get_if<Left>(&event)) lead.apply(*gone);
  }
  bool all_ended() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.follower.end().has_value(); });
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
    const bool leads_to_end = r == 0 && lead.end();
    if (reader.stopped || leads_to_end) continue;
    const int number = static_cast<int>(r);
    if (reader.sent == reader.length) {
      branch([&](Model& m) {
        m.readers[r].stopped = true;
        FeedEnd end = exhausted(reader.length, number);
        if (reader.fails) end.cause = FeedEnd::Cause::failed;
        m.report(Stopped{number, end});
      });
    } else if (has_room(r)) {
      branch([&](Model& m) {
        for (std::size_t i = r; i < ranks.size(); i += readers.size()) m.ranks[i].data += m.ranks[i].left ? 0 : 1;
        m.report(Ready{number, ++m.readers[r].sent});
      });
    }
  }
  if (!reports.empty()) {
    branch([&](Model& m) {
      m.hear(m.reports.front());
      m.reports.pop_front();
    });
  }
  const bool grant = readers.size() > 1 && lead.granted() > granted_told;
  if (!end_told && (lead.end() || grant)) {
    branch([&](Model& m) {
      const Event word = lead.end() ? Event(Ended{*lead.end()}) : Event(Granted{lead.granted()});
      for (Rank& rank : m.ranks) rank.decisions.push_back(word);
      m.granted_told = lead.granted();
      m.end_told = lead.end().has_value();
    });
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Rank& rank = ranks[i];
    if (!rank.decisions.empty()) {
      branch([&](Model& m) {
        const Event event = rank.decisions.front();
        m.ranks[i].decisions.pop_front();
        if (const auto* granted = std::get_if<Granted>(&event)) m.ranks[i].follower.apply(*granted);
        if (const auto* ended = std::get_if<Ended>(&event)) m.ranks[i].follower.apply(*ended);
      });
    }
    if (rank.data > 0 && !rank.left && rank.follower.may_take()) {
      branch([&](Model& m) {
        --m.ranks[i].data;
        m.ranks[i].follower.advance();
      });
    }
    if (may_leave.contains(static_cast<int>(i)) && !rank.left && !rank.follower.end()) {
      branch([&](Model& m) {
        m.ranks[i].left = true;
        m.ranks[i].data = 0;
        m.report(Left{static_cast<int>(i)});
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
  for (const std::string& event : heard) key += event;
  number(lead.granted());
  number(granted_told * 2 + (end_told ? 1 : 0));
  if (lead.end()) add(Ended{*lead.end()});
  for (const Rank& rank : ranks) {
    key += '|';
    number(rank.follower.step());
    number(rank.data * 4 + (rank.left ? 2 : 0) + (rank.follower.may_take() ? 1 : 0));
    if (rank.follower.end()) add(Ended{*rank.follower.end()});
    key += '/';
    for (const Event& event : rank.decisions) add(event);
  }
  return key;
}

/// Goes through every order of events. At each state where nothing more can happen all ranks must know the same end,
/// and those that stayed must have been given all the steps up to it. Returns the ends seen.
std::set<std::int64_t> explore(const Model& start) {
  std::set<std::string> seen;
  std::set<std::int64_t> ends;
  std::vector<Model> stack{start};
  while (!stack.empty()) {
    const Model state = std::move(stack.back());
    stack.pop_back();
    if (!seen.insert(state.key()).second) continue;
    auto next = state.successors();
    if (next.empty()) {
      EXPECT_TRUE(state.all_ended()) << "a deadlock: " << state.key();
      if (!state.all_ended()) return ends;
      for (const Model::Rank& rank : state.ranks) {
        EXPECT_EQ(*rank.follower.end(), *state.lead.end());
        EXPECT_TRUE(rank.left || rank.follower.step() == state.lead.end()->step);
      }
      ends.insert(state.lead.end()->step);
    }
    for (Model& model : next) stack.push_back(std::move(model));
  }
  return ends;
}

using Ends = std::set<std::int64_t>;

TEST(FeedProtocolExplored, OneReaderGivesAllItsRoundsToAll) {
  for (const int depth : {1, 2}) {
    EXPECT_EQ(explore(Model({{.length = 4}}, 3, depth)), Ends{4});
    EXPECT_EQ(explore(Model({{.length = 0}}, 3, depth)), Ends{0});
    EXPECT_EQ(explore(Model({{.length = 2, .fails = true}}, 3, depth)), Ends{2});
  }
}

TEST(FeedProtocolExplored, SeveralReadersStopWhereTheShortestStops) {
  EXPECT_EQ(explore(Model({{.length = 3}, {.length = 3}}, 2, 1)), Ends{3});
  EXPECT_EQ(explore(Model({{.length = 3}, {.length = 1}}, 2, 2)), Ends{1});
  EXPECT_EQ(explore(Model({{.length = 1, .fails = true}, {.length = 2}}, 2, 1)), Ends{1});
  EXPECT_EQ(explore(Model({{.length = 2}, {.length = 2}, {.length = 1, .fails = true}}, 3, 1)), Ends{1});
}

TEST(FeedProtocolExplored, ARankMayLeaveAtAnyMoment) {
  Model one({{.length = 3}}, 3, 1);
  one.may_leave = {0, 2};
  EXPECT_EQ(explore(one), (Ends{0, 1, 2, 3}));

  Model two({{.length = 2}, {.length = 2}}, 2, 1);
  two.may_leave = {1};
  EXPECT_EQ(explore(two), (Ends{0, 1, 2}));
}

}  // namespace
}  // namespace levada::feed_protocol
