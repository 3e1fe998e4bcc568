// Readers whose data differ in one byte.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "levada/engine/inproc/inproc.h"
#include "levada/engine/joined/hosts_testing.h"
#include "levada/feed/feed.h"
#include "levada/feed/source_testing.h"
#include "levada/feed/unit_digest.h"
#include "levada/tree/codec.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Numbered;
using testing::NumberedOptions;

/// One byte of one sample that differs from the other ranks' data.
struct Alteration {
  std::int64_t sample = 0;
  std::string field = "tokens";
  std::size_t byte = 0;  ///< position in the sample
  std::uint8_t bits = 1;
};

/// Has random access, so that readers compare only units that several of them read.
class Indexed : public Numbered {
 public:
  using Numbered::Numbered;
  bool has_random_access() const override { return true; }
};

class Altered final : public Indexed {
 public:
  Altered(NumberedOptions options, Alteration alteration) : Indexed(std::move(options)), alteration_(alteration) {}

  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override {
    auto batch = Numbered::read(first, count, memory);
    if (!batch || alteration_.sample < first || alteration_.sample >= first + count) return batch;
    auto tensor = batch->tensor(alteration_.field);
    const auto sample = static_cast<std::size_t>(alteration_.sample - first);
    if (std::cmp_greater_equal(sample, tensor.shape()[0])) return batch;
    const auto sample_bytes = tensor.bytes().size() / static_cast<std::size_t>(tensor.shape()[0]);
    tensor.mutable_bytes()[sample * sample_bytes + alteration_.byte] ^= std::byte{alteration_.bits};
    return batch;
  }

 private:
  Alteration alteration_;
};

/// A job in which the ranks `altered` have different data from the others.
struct Case {
  Mesh mesh;
  FeedOptions options;
  int ranks_a_host = 0;  ///< 0: all ranks are on one host, without an engine between hosts
  NumberedOptions data;
  std::set<int> altered;
  Alteration alteration;

  std::string to_string() const {
    return fmt::format("mesh {}, readers {}, divide {}, {} ranks a host, first altered rank {}, sample {}, {} byte {}",
                       mesh.to_string(), options.readers.to_string(), levada::to_string(options.divide), ranks_a_host,
                       *altered.begin(), alteration.sample, alteration.field, alteration.byte);
  }
};

struct Outcome {
  std::string error = "none";
  std::vector<Bytes> batches;
};

std::vector<Outcome> outcomes_of(const Case& job) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(job.mesh.size()));
  const auto body = [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    std::shared_ptr<Source> source = std::make_shared<Indexed>(job.data);
    if (job.altered.contains(rank)) source = std::make_shared<Altered>(job.data, job.alteration);
    try {
      Feed feed(engine, job.mesh, layouts::gpt(), source, job.options);
      while (auto batch = feed.next()) outcome.batches.push_back(encode_tree(batch->tree()));
    } catch (const Error& error) {
      outcome.error = fmt::format("{}: {}", error.name(), error.what());
    }
  };
  if (job.ranks_a_host == 0) {
    inproc::run_ranks(job.mesh.size(), body);
  } else {
    EXPECT_EQ(joined::test::run_ranks(job.mesh.size(), {.ranks_a_host = job.ranks_a_host},
                                      [&](const auto& engine, auto&) { body(engine); }),
              "");
  }
  return outcomes;
}

/// Returns whether the altered sample is in a batch that both an altered and an unaltered reader read.
bool must_agree(const Case& job) {
  std::vector<int> host_of;
  for (int rank = 0; rank < job.mesh.size(); ++rank) {
    host_of.push_back(job.ranks_a_host == 0 ? 0 : rank / job.ranks_a_host);
  }
  const auto readers = job.options.readers.of(job.mesh, host_of);
  const auto unit =
      job.options.divide == Divide::split ? 0 : job.alteration.sample / job.options.batch % job.mesh.data_size();
  std::set<bool> kinds;
  for (int rank = 0; rank < job.mesh.size(); ++rank) {
    const bool wants = job.options.divide == Divide::split || job.mesh.data_coordinate(rank) == unit;
    if (wants) kinds.insert(job.altered.contains(readers[static_cast<std::size_t>(rank)]));
  }
  return kinds.size() == 2;
}

Case draw(std::mt19937& random) {
  const auto pick = [&](const auto&... options) {
    const std::vector<std::string> all{options...};
    return all[random() % all.size()];
  };
  Case job{.mesh = Mesh::parse(pick("dp=2", "tp=2", "pp=2", "tp=4", "dp=2,tp=2", "tp=2,dp=2", "cp=2,tp=2", "pp=2,dp=2",
                                    "dp=3", "dp=3,tp=2", "tp=2,dp=3", "pp=3,cp=2")),
           .options = {},
           .data = {},
           .altered = {},
           .alteration = {}};
  job.options.readers = Readers::parse(pick("one", "all", "host", "dp", "tp", "pp", "dp,pp", "dp,tp"));
  job.options.batch = 1 + static_cast<std::int64_t>(random() % 3);
  job.options.divide = random() % 2 == 0 ? Divide::deal : Divide::split;
  job.options.ahead = random() % 4 != 0;
  job.ranks_a_host = std::max(0, static_cast<int>(random() % 6) - 2);
  const auto rounds = 1 + static_cast<std::int64_t>(random() % 7);
  job.data = {.samples = rounds * job.options.batch * job.mesh.data_size(),
              .sequence = 12,
              .known_size = random() % 2 == 0,
              .in_memory_given = random() % 2 == 0};
  const int altered = static_cast<int>(random() % static_cast<unsigned>(job.mesh.size()));
  for (int rank = 0; rank < job.mesh.size(); ++rank) {
    const bool shares_copy = job.ranks_a_host > 0 && rank / job.ranks_a_host == altered / job.ranks_a_host;
    if (rank == altered || shares_copy) job.altered.insert(rank);
  }
  job.alteration = {.sample = static_cast<std::int64_t>(random() % static_cast<unsigned>(job.data.samples)),
                    .field = pick("tokens", "labels", "loss_mask", "position_ids"),
                    .byte = random() % 48,
                    .bits = static_cast<std::uint8_t>(1U << random() % 8)};
  return job;
}

TEST(FeedDifference, AllRanksRaiseBeforeTheStepOfAnAlteredByteThatReadersShare) {
  std::mt19937 random(20);
  int raised = 0;
  for (int i = 0; i < 60; ++i) {
    const Case job = draw(random);
    SCOPED_TRACE(job.to_string());
    Case plain = job;
    plain.altered.clear();
    plain.ranks_a_host = 0;
    plain.options.readers = Readers::parse("one");
    const auto expected = outcomes_of(plain), got = outcomes_of(job);
    const auto step = job.alteration.sample / job.options.batch / job.mesh.data_size();
    const bool raises = must_agree(job);
    raised += raises ? 1 : 0;
    for (std::size_t rank = 0; rank < got.size(); ++rank) {
      ASSERT_EQ(expected[rank].error, "none");
      if (!raises) {
        EXPECT_EQ(got[rank].error, "none");
        EXPECT_EQ(got[rank].batches.size(), expected[rank].batches.size());
        continue;
      }
      EXPECT_EQ(got[rank].error, got[0].error);
      EXPECT_THAT(got[rank].error, AllOf(HasSubstr("SourceError: rank "), HasSubstr(fmt::format("step {}:", step)),
                                         HasSubstr("in " + job.alteration.field + ";"), HasSubstr("readers=\"one\"")));
      EXPECT_EQ(got[rank].batches, std::vector(expected[rank].batches.begin(), expected[rank].batches.begin() + step));
    }
  }
  EXPECT_GT(raised, 10);
}

TEST(FeedDifference, NamesStepRanksAndFieldsOnEveryRank) {
  const Case job{.mesh = Mesh::parse("dp=2,tp=2"),
                 .options = {.batch = 2, .readers = Readers::parse("all")},
                 .data = {},
                 .altered = {3},
                 .alteration = {.sample = 4 * 3 + 2}};
  for (const auto& outcome : outcomes_of(job)) {
    EXPECT_EQ(outcome.batches.size(), 3U);
    EXPECT_THAT(outcome.error,
                HasSubstr("rank 3 could not read step 3: the batch of data-parallel rank 1 differs between "
                          "rank 2 and rank 3, in tokens; let all ranks that read have the same data"));
    EXPECT_THAT(outcome.error, Not(HasSubstr("host")));
  }
}

TEST(FeedDifference, NamesTheHostsOfAJobOnSeveralHosts) {
  const Case job{.mesh = Mesh::parse("tp=4"),
                 .options = {.batch = 2, .readers = Readers::parse("host")},
                 .ranks_a_host = 2,
                 .data = {},
                 .altered = {2, 3},
                 .alteration = {.sample = 5}};
  for (const auto& outcome : outcomes_of(job)) {
    EXPECT_EQ(outcome.batches.size(), 2U);
    EXPECT_THAT(outcome.error,
                AllOf(HasSubstr("the batch differs between rank 0 on host "), HasSubstr("rank 2 on host ")));
  }
}

TEST(FeedDifference, ReadersDoNotHashUnsharedData) {
  struct Unshared final : Indexed {
    using Indexed::Indexed;
    bool is_comparable(const Leaf&) const override {
      ADD_FAILURE() << "is asked for a digest";
      return true;
    }
  };
  for (const char* readers : {"one", "dp"}) {
    inproc::run_ranks(4, [&](const std::shared_ptr<Engine>& engine) {
      Feed feed(engine, Mesh::parse("dp=2,tp=2"), layouts::gpt(), std::make_shared<Unshared>(NumberedOptions()),
                {.batch = 2, .readers = Readers::parse(readers)});
      while (feed.next()) {
      }
    });
  }
}

feed_protocol::UnitDigest digest_of(const Tree& tree) {
  return levada::digest_of(0, flatten(tree), Numbered({}));
}

TEST(UnitDigest, DoesNotDependOnStrides) {
  const auto tensor = [](DType dtype) { return Tensor::zeros(dtype, {3, 4}); };
  auto wide = tensor(dtypes::int32);
  for (std::int32_t i = 0; auto& value : wide.mutable_as<std::int32_t>()) value = i++;
  const auto transposed = wide.view();
  const Tensor strided(TensorView(dtypes::int32, {4, 3}, {1, 4}, transposed.data()), wide.owner(), false);
  EXPECT_EQ(digest_of(Tree(strided)), digest_of(Tree(Tensor::copy_of(strided))));
  EXPECT_NE(digest_of(Tree(strided)), digest_of(Tree(wide)));
}

TEST(UnitDigest, DependsOnStructureShapesTypesAndEachValue) {
  const auto zeros = [](DType dtype, const Shape& shape) { return Tree(Tensor::zeros(dtype, shape)); };
  const std::vector<Tree> different{
      zeros(dtypes::int32, {2, 3}),
      zeros(dtypes::int32, {3, 2}),
      zeros(dtypes::int32, {6}),
      zeros(dtypes::float32, {2, 3}),
      Tree::list({zeros(dtypes::int32, {2, 3})}),
      Tree::tuple({zeros(dtypes::int32, {2, 3})}),
      Tree::dict({{"a", zeros(dtypes::int32, {2, 3})}}),
      Tree::dict({{"b", zeros(dtypes::int32, {2, 3})}}),
      Tree(),
      Tree(true),
      Tree(false),
      Tree(1),
      Tree(2),
      Tree(1.0),
      Tree("1"),
      Tree(""),
      Tree(Bytes{std::byte{1}}),
      Tree::list({Tree(1), Tree(2)}),
      Tree::list({Tree(2), Tree(1)}),
  };
  for (std::size_t i = 0; i < different.size(); ++i) {
    EXPECT_EQ(digest_of(different[i]), digest_of(different[i]));
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(digest_of(different[i]), digest_of(different[j])) << i << " " << j;
  }
}

TEST(UnitDigest, NamesAtMostEightFieldsButComparesAll) {
  std::vector<Tree> values;
  for (int i = 0; i < 100; ++i) values.emplace_back(i);
  const auto before = digest_of(Tree::list(values));
  ASSERT_EQ(before.fields.size(), 8U);
  EXPECT_EQ(before.fields[6].path, "[6]");
  EXPECT_EQ(before.fields[7].path, "[7] or later");
  for (const std::size_t i : {7, 8, 50, 99}) {
    auto other = values;
    other[i] = Tree(-1);
    EXPECT_NE(digest_of(Tree::list(other)).fields[7], before.fields[7]);
  }
  std::swap(values[50], values[51]);
  EXPECT_NE(digest_of(Tree::list(values)).fields[7], before.fields[7]);
}

}  // namespace
}  // namespace levada
