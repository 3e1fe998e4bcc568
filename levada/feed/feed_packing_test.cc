// Packed rows whose segments change from step to step, divided by zigzag along every axis that it may use.
#include <gmock/gmock.h>

#include "levada/engine/inproc/inproc.h"
#include "levada/feed/feed.h"

namespace levada {
namespace {

constexpr std::int64_t row_length = 96, packed_steps = 6;

/// Returns the segment boundaries of a step: they differ from step to step and repeat after three steps.
std::vector<std::int64_t> segments_of_step(std::int64_t step) {
  const std::int64_t first = 24 * (step % 3);
  return {0, first, row_length};
}

/// Returns rows in which each element is the number of its position.
class PackedSource : public Source {
 public:
  explicit PackedSource(std::int64_t rows) : rows_(rows) {}

  std::optional<std::int64_t> size() const override { return packed_steps * rows_; }
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override {
    if (first >= packed_steps * rows_) return std::nullopt;
    Tensor tokens = memory.empty(dtypes::int64, {count, row_length}), ends = memory.empty(dtypes::int64, {count, 3});
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t i = 0; i < row_length; ++i) {
        tokens.mutable_as<std::int64_t>()[static_cast<std::size_t>(row * row_length + i)] = i;
      }
      const auto segments = segments_of_step(first / rows_);
      std::ranges::copy(segments, ends.mutable_as<std::int64_t>().begin() + row * 3);
    }
    return Tree::dict({{"tokens", tokens}, {"cu_seqlens_q", ends}});
  }
  Bytes cursor(std::int64_t) const override { return {}; }
  std::string activity() const override { return "packed rows"; }
  ReadStats stats() const override { return {}; }

 private:
  std::int64_t rows_;  ///< rows per step
};

std::vector<std::int64_t> zigzag(const std::vector<std::int64_t>& ends, int index, int count) {
  std::vector<std::int64_t> part;
  for (std::size_t segment = 0; segment + 1 < ends.size(); ++segment) {
    const auto chunk = (ends[segment + 1] - ends[segment]) / (2 * count);
    for (const std::int64_t number : {index, 2 * count - 1 - index}) {
      for (std::int64_t i = 0; i < chunk; ++i) part.push_back(ends[segment] + number * chunk + i);
    }
  }
  return part;
}

class PackedFeed : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(PackedFeed, DividesEachStepByItsOwnSegments) {
  const auto& [mesh_text, axis] = GetParam();
  const Mesh mesh = Mesh::parse(mesh_text);
  const AxisSpan span = mesh.span(axis);
  const Layout layout{.name = "packed", .rules = {{"tokens", {Zigzag{axis, 1}}}}, .otherwise = {}, .stages = {}};
  const std::int64_t rows = mesh.data_size();
  inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    Feed feed(engine, mesh, layout, std::make_shared<PackedSource>(rows), {.batch = 1, .divide = Divide::split});
    std::int64_t step = 0;
    for (auto batch = feed.next(); batch; batch = feed.next(), ++step) {
      const auto row = zigzag(segments_of_step(step), span.of(engine->info().rank), span.size());
      std::vector<std::int64_t> expected;
      for (std::int64_t i = 0; i < rows; ++i) expected.insert(expected.end(), row.begin(), row.end());
      const auto tokens = batch->tensor("tokens");
      ASSERT_THAT(tokens.as<std::int64_t>(), ::testing::ElementsAreArray(expected)) << "step " << step;
    }
    ASSERT_EQ(step, packed_steps);
  });
}

INSTANTIATE_TEST_SUITE_P(Axes, PackedFeed,
                         ::testing::Values(std::pair{"cp=2", "cp"}, std::pair{"tp=2,cp=3", "cp"},
                                           std::pair{"dp=2", "dp"}, std::pair{"dp_shard=2", "dp"},
                                           std::pair{"fsdp=2,tp=2", "fsdp"},
                                           std::pair{"dp_replicate=2,dp_shard=2", "dp"},
                                           std::pair{"dp_replicate=2,dp_shard=3", "dp_shard"}));

}  // namespace
}  // namespace levada
