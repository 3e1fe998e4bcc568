#include <cstring>

#include "levada/engine/conformance_kit.h"
#include "levada/engine/group_reducer.h"

namespace levada::conformance {
namespace {

/// What rank `from` gives as element i of its piece for rank `to`: small, so that every sum is exact.
int given(int from, int to, std::size_t i) {
  return (from * 5 + to * 3 + static_cast<int>(i % 7)) % 11;
}

template <typename T>
std::vector<T> pieces(const Engine& engine, std::size_t count) {
  std::vector<T> values;
  for (const int to : all_ranks(engine)) {
    for (std::size_t i = 0; i < count; ++i) values.push_back(static_cast<T>(given(rank_of(engine), to, i)));
  }
  return values;
}

template <typename T>
std::vector<T> summed(GroupReducer& reducer, std::size_t count, const std::vector<T>& from) {
  std::vector<T> to(count, T{77});
  reducer.reduce_scatter(dtype_of<T>(), std::as_bytes(std::span(from)), std::as_writable_bytes(std::span(to)), limit());
  return to;
}

template <typename T>
void expect_sum(const Engine& engine, GroupReducer& reducer, std::size_t count) {
  const auto sums = summed(reducer, count, pieces<T>(engine, count));
  for (std::size_t i = 0; i < count; ++i) {
    int sum = 0;
    for (const int from : all_ranks(engine)) sum += given(from, rank_of(engine), i);
    expect(engine, sums[i] == static_cast<T>(sum), "a reducer gives the sum of all ranks' pieces for this one");
  }
}

template <typename T>
void expect_sums(const Engine& engine, GroupReducer& reducer) {
  if (!reducer.can_sum(dtype_of<T>())) return;
  for (const std::size_t count : {1, 3, 1000, 100'003}) expect_sum<T>(engine, reducer, count);
}

void a_reducer_adds_up_what_all_ranks_give(const Handle& engine) {
  const auto reducer = engine->open_reducer();
  if (!reducer) return;
  expect(*engine, reducer->can_sum(dtypes::float32), "whoever has a reducer adds up float32");
  expect_sums<float>(*engine, *reducer);
  expect_sums<double>(*engine, *reducer);
  expect_sums<std::int8_t>(*engine, *reducer);
  expect_sums<std::uint8_t>(*engine, *reducer);
  expect_sums<std::int16_t>(*engine, *reducer);
  expect_sums<std::int32_t>(*engine, *reducer);
  expect_sums<std::int64_t>(*engine, *reducer);
}

void a_reducer_is_of_its_groups_ranks_alone(const Handle& engine) {
  std::vector<std::shared_ptr<GroupReducer>> reducers = {engine->open_reducer(), engine->open_reducer()};
  if (!reducers[0]) return;
  const int half = rank_of(*engine) % 2;
  std::vector<int> mine;
  for (int rank = size_of(*engine) - 1; rank >= 0; --rank) {
    if (rank % 2 == half) mine.push_back(rank);
  }
  const auto group = engine->subgroup(mine, "every other");
  const auto inner = group->open_reducer();
  expect(*engine, reducers[1] && inner, "every group of an engine has reducers, or none");
  for (int round = 0; round < 5; ++round) {
    expect_sum<float>(*group, *inner, 50);
    expect_sum<float>(*engine, *reducers[static_cast<std::size_t>(round % 2)], 20);
  }
  reducers[0].reset();
  meet(*engine);
  expect_sum<float>(*engine, *reducers[1], 9);
}

void a_deterministic_reducer_gives_the_same_bits_again(const Handle& engine) {
  const auto reducer = engine->open_reducer();
  if (!reducer || !reducer->is_deterministic()) return;
  std::vector<float> from;
  for (const int to : all_ranks(*engine)) {
    for (std::size_t i = 0; i < 5000; ++i)
      from.push_back(1.0F / static_cast<float>(1 + given(rank_of(*engine), to, i)));
  }
  const auto once = summed(*reducer, 5000, from);
  for (int round = 0; round < 8; ++round) {
    if (round % size_of(*engine) == rank_of(*engine)) std::this_thread::yield();
    const auto again = summed(*reducer, 5000, from);
    expect(*engine, std::memcmp(once.data(), again.data(), once.size() * sizeof(float)) == 0,
           "a deterministic reducer gives the same bits again");
  }
}

void a_reducer_refuses_what_it_cannot_add_up(const Handle& engine) {
  const auto reducer = engine->open_reducer();
  if (!reducer) return;
  Bytes from(static_cast<std::size_t>(size_of(*engine)) * 8), to(8);
  const auto sum = [&](DType dtype, std::size_t bytes, std::size_t piece) {
    reducer->reduce_scatter(dtype, std::span(from).first(bytes), std::span(to).first(piece), limit());
    return 0;
  };
  expect(*engine, !reducer->can_sum(dtypes::boolean), "there are no sums of bool");
  expect_throws<Unsupported>(*engine, "bool is not added up", [&] { return sum(dtypes::boolean, from.size(), 8); });
  expect_throws<InvalidArgument>(*engine, "there is a piece for each rank",
                                 [&] { return sum(dtypes::float32, from.size() - 4, 8); });
  expect_throws<InvalidArgument>(*engine, "a piece has whole elements",
                                 [&] { return sum(dtypes::float32, from.size() / 8 * 6, 6); });
  expect_throws<InvalidArgument>(*engine, "a piece has elements", [&] { return sum(dtypes::float32, 0, 0); });
  expect_sum<float>(*engine, *reducer, 4);
}

constexpr Case list[] = {
    {"a reducer adds up what all ranks give", 1, a_reducer_adds_up_what_all_ranks_give},
    {"a reducer is of its group's ranks alone", 1, a_reducer_is_of_its_groups_ranks_alone},
    {"a deterministic reducer gives the same bits again", 1, a_deterministic_reducer_gives_the_same_bits_again},
    {"a reducer refuses what it cannot add up", 1, a_reducer_refuses_what_it_cannot_add_up},
};

}  // namespace

std::span<const Case> reducer_cases() {
  return list;
}

}  // namespace levada::conformance
