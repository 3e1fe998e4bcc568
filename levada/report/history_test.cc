#include "levada/report/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace levada::report {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

struct Piece {
  TraceKind kind;
  std::int64_t begin, end;
  int other;
  bool operator==(const Piece&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Piece& piece) {
  return out << describe(piece.kind) << " [" << piece.begin << ", " << piece.end << ") " << piece.other;
}

TraceSpan span(TraceThread thread, TraceKind kind, std::int64_t begin, std::int64_t end, int other = -1,
               std::int64_t step = 0) {
  return {.kind = kind, .thread = thread, .other = other, .step = step, .begin_ns = begin, .duration_ns = end - begin};
}
TraceSpan reads(TraceKind kind, std::int64_t begin, std::int64_t end, int other = -1, std::int64_t step = 0) {
  return span(TraceThread::reader, kind, begin, end, other, step);
}
TraceSpan steps(TraceKind kind, std::int64_t begin, std::int64_t end, int other = -1, std::int64_t step = 0) {
  return span(TraceThread::step, kind, begin, end, other, step);
}

Trace trace_of(std::vector<TraceSpan> spans) {
  Trace trace;
  trace.spans = std::move(spans);
  return trace;
}

std::vector<Piece> pieces(const std::vector<TraceSpan>& spans) {
  std::vector<Piece> pieces;
  for (const auto& each : spans) pieces.push_back({each.kind, each.begin_ns, each.end_ns(), each.other});
  return pieces;
}

TEST(Innermost, AttributesEachMomentToTheInnermostSpan) {
  const auto flat = innermost({reads(TraceKind::memory, 20, 30), reads(TraceKind::read, 10, 40),
                               reads(TraceKind::memory, 35, 40), reads(TraceKind::pack, 40, 50)});
  EXPECT_THAT(pieces(flat), ElementsAre(Piece{TraceKind::read, 10, 20, -1}, Piece{TraceKind::memory, 20, 30, -1},
                                        Piece{TraceKind::read, 30, 35, -1}, Piece{TraceKind::memory, 35, 40, -1},
                                        Piece{TraceKind::pack, 40, 50, -1}));
}

TEST(Innermost, HandlesOverlappingSpans) {
  const auto flat = innermost({reads(TraceKind::read, 0, 20), reads(TraceKind::pack, 10, 30)});
  EXPECT_THAT(pieces(flat), ElementsAre(Piece{TraceKind::read, 0, 10, -1}, Piece{TraceKind::pack, 10, 20, -1}));
}

TEST(ExplainWaits, SplitsAWaitWhenItsReaderChangesActivity) {
  const auto reader = trace_of({reads(TraceKind::memory, 15, 20), reads(TraceKind::read, 10, 40),
                                reads(TraceKind::pack, 40, 50), reads(TraceKind::room, 60, 90, 3)});
  const auto rank = trace_of({steps(TraceKind::step, 0, 12), steps(TraceKind::handover, 12, 100, 0)});
  const auto explained = explain_waits({reader, rank});
  EXPECT_EQ(explained[0], reader);
  EXPECT_THAT(pieces(explained[1].spans),
              ElementsAre(Piece{TraceKind::step, 0, 12, -1}, Piece{TraceKind::read, 12, 15, 0},
                          Piece{TraceKind::memory, 15, 20, 0}, Piece{TraceKind::read, 20, 40, 0},
                          Piece{TraceKind::pack, 40, 50, 0}, Piece{TraceKind::handover, 50, 60, 0},
                          Piece{TraceKind::room, 60, 90, 3}, Piece{TraceKind::handover, 90, 100, 0}));
}

TEST(ExplainWaits, AttributesAWaitForAGrantToTheSlowestReader) {
  const auto fast =
      trace_of({reads(TraceKind::read, 0, 10), reads(TraceKind::pack, 10, 15), steps(TraceKind::grant, 0, 50, 0)});
  const auto slow = trace_of({reads(TraceKind::read, 0, 40), reads(TraceKind::pack, 40, 45)});
  const auto explained = explain_waits({fast, slow});
  EXPECT_THAT(pieces(explained[0].spans),
              ElementsAre(Piece{TraceKind::read, 0, 10, -1}, Piece{TraceKind::pack, 10, 15, -1},
                          Piece{TraceKind::read, 0, 40, 1}, Piece{TraceKind::pack, 40, 45, 1},
                          Piece{TraceKind::grant, 45, 50, 1}));
}

TEST(ExplainWaits, DoesNotExplainAWaitForAnUnknownRank) {
  const auto rank = trace_of({steps(TraceKind::handover, 0, 10, 7), steps(TraceKind::handover, 10, 20)});
  EXPECT_EQ(explain_waits({rank})[0], rank);
}

TEST(ExplainWaits, KeepsOnlyStepsOfAllRanks) {
  auto reader = trace_of({reads(TraceKind::read, 0, 10, -1, 0), reads(TraceKind::read, 40, 50, -1, 4)});
  reader.stride = 4;
  auto rank = trace_of({steps(TraceKind::handover, 0, 10, 0, 0), steps(TraceKind::handover, 20, 30, 0, 2)});
  rank.stride = 2;
  const auto explained = explain_waits({reader, rank});
  EXPECT_THAT(pieces(explained[1].spans), ElementsAre(Piece{TraceKind::read, 0, 10, 0}));
  EXPECT_EQ(explained[1].stride, 4);
  EXPECT_EQ(explained[1].dropped, 1u);
}

TEST(Timeline, DividesTimeIntoEqualParts) {
  const auto timeline = make_timeline({trace_of({steps(TraceKind::step, 100, 250), steps(TraceKind::read, 250, 300)}),
                                       trace_of({}), trace_of({reads(TraceKind::pack, 260, 270)})},
                                      4);
  EXPECT_EQ(timeline.begin_ns, 100);
  EXPECT_EQ(timeline.end_ns, 300);
  ASSERT_EQ(timeline.rows.size(), 2u);
  const auto& first = timeline.rows[0];
  const auto of = [](TraceKind kind) { return static_cast<std::size_t>(kind); };
  EXPECT_EQ(first.rank, 0);
  EXPECT_THAT(first.parts[0][of(TraceKind::step)], DoubleNear(50, 1e-6));
  EXPECT_THAT(first.parts[2][of(TraceKind::step)], DoubleNear(50, 1e-6));
  EXPECT_THAT(first.parts[3][of(TraceKind::step)], DoubleNear(0, 1e-6));
  EXPECT_THAT(first.parts[3][of(TraceKind::read)], DoubleNear(50, 1e-6));
  EXPECT_THAT(std::accumulate(first.total.begin(), first.total.end(), 0.0), DoubleNear(200, 1e-6));
  EXPECT_EQ(timeline.rows[1].rank, 2);
  EXPECT_EQ(timeline.rows[1].thread, TraceThread::reader);
  EXPECT_THAT(timeline.rows[1].parts[3][of(TraceKind::pack)], DoubleNear(10, 1e-6));
}

TEST(Timeline, IsEmptyIfNothingWasRecorded) {
  const auto timeline = make_timeline({Trace{}, Trace{}}, 3);
  EXPECT_TRUE(timeline.rows.empty());
  EXPECT_GT(timeline.end_ns, timeline.begin_ns);
}

TEST(MemoryInParts, HasTheMaximumOfEachPartAndCarriesTheLastValueForward) {
  auto trace = trace_of({steps(TraceKind::step, 0, 400)});
  trace.memory = {{0, 10, 5}, {0, 20, 9}, {0, 30, 7}, {0, 350, 1}, {0, 400, 3}};
  const auto timeline = make_timeline({trace, Trace{}}, 4);
  const auto memory = memory_in_parts({trace, Trace{}}, timeline);
  EXPECT_THAT(memory[0], ElementsAre(9, 7, 7, 3));
  EXPECT_TRUE(memory[1].empty());
}

}  // namespace
}  // namespace levada::report
