// Turns batches into portions, messages and trees again, on one rank that sends to itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/tensor/elements.h"
#include "levada/transfer/inbox.h"
#include "levada/transfer/outbox.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(10));
}

/// Both ends of a channel from a rank to itself.
class Loop {
 public:
  explicit Loop(std::shared_ptr<Engine> engine, Access access = Access::read_only, int keep = 4)
      : engine_(std::move(engine)),
        channel_(engine_->open(0, {0}, 8)),
        outbox_(channel_),
        inbox_(engine_, channel_, access, keep) {}

  BlockMemory memory() {
    return BlockMemory([this](std::size_t bytes) { return allocate(*engine_, bytes, soon(), "test"); });
  }
  Inbox::Arrival send(const FlatTree& batch, const Portion& portion, BlockMemory* memory = nullptr) {
    PackedMessage packed = outbox_.pack(
        batch, portion, {}, memory, [this](std::size_t bytes) { return allocate(*engine_, bytes, soon(), "test"); });
    publish(*engine_, *channel_, std::move(packed.block), packed.bytes, soon(), "test");
    return inbox_.try_receive().value();
  }
  Engine& engine() { return *engine_; }
  Channel& channel() { return *channel_; }
  Inbox& inbox() { return inbox_; }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Channel> channel_;
  Outbox outbox_;
  Inbox inbox_;
};

void with_loop(const std::function<void(Loop&)>& body, Access access = Access::read_only, int keep = 4) {
  inproc::run_ranks(1, [&](const std::shared_ptr<Engine>& engine) {
    Loop loop(engine, access, keep);
    body(loop);
  });
}

Portion whole(const FlatTree& batch) {
  const auto fields = fields_of(batch);
  std::vector<Move> moves;
  for (int i = 0; i < static_cast<int>(fields.size()); ++i) {
    moves.push_back({i, 0, Region(fields[static_cast<std::size_t>(i)].shape), 0});
  }
  return make_portion(batch, moves);
}

Tree numbers(std::int64_t first) {
  return Tree::dict({{"x", Tensor::of<std::int64_t>({2, 2}, {first, first + 1, first + 2, first + 3})},
                     {"name", Tree(std::string("batch"))}});
}

TEST(Transfer, SendsTensorsOfTheBlockWithoutCopying) {
  with_loop([](Loop& loop) {
    BlockMemory memory = loop.memory();
    Tensor x = memory.empty(dtypes::int64, {100});
    std::ranges::fill(x.mutable_as<std::int64_t>(), 7);
    const auto* made_at = x.view().data();
    Tree tree = Tree::dict({{"x", std::move(x)}});
    const FlatTree batch = flatten(tree);
    tree = Tree();
    const auto before = copied_bytes();
    const auto arrival = loop.send(batch, whole(batch), &memory);
    EXPECT_EQ(copied_bytes(), before);
    EXPECT_EQ(arrival.tree().tensor("x").as<std::int64_t>()[99], 7);
    EXPECT_EQ(arrival.tree().tensor("x").view().data(), made_at)
        << "a receiver of the same process sees the same block";
  });
}

TEST(Transfer, CopiesTensorsThatTheCallerStillHolds) {
  with_loop([](Loop& loop) {
    BlockMemory memory = loop.memory();
    Tensor x = memory.empty(dtypes::int64, {100});
    std::ranges::fill(x.mutable_as<std::int64_t>(), 7);
    const FlatTree batch = flatten(Tree::dict({{"x", x}}));
    const auto arrival = loop.send(batch, whole(batch), &memory);
    std::ranges::fill(x.mutable_as<std::int64_t>(), 8);
    EXPECT_EQ(arrival.tree().tensor("x").as<std::int64_t>()[0], 7);
  });
}

TEST(Transfer, APortionOmitsLeavesAndSlicesTensors) {
  with_loop([](Loop& loop) {
    const FlatTree batch = flatten(numbers(1));
    Region column(Shape{2, 2});
    column.keep_part(1, 1, 2);
    const Move moves[] = {{0, 0, column, 16}};
    EXPECT_EQ(loop.send(batch, make_portion(batch, moves)).tree(),
              Tree::dict({{"x", Tensor::of<std::int64_t>({2, 1}, {2, 4})}}));
  });
}

TEST(Transfer, AnAliasStaysOneTensor) {
  with_loop([](Loop& loop) {
    const Tensor x = Tensor::of<std::int64_t>({2}, {1, 2});
    const FlatTree batch = flatten(Tree::dict({{"a", x}, {"b", x}}));
    const auto portion = whole(batch);
    EXPECT_EQ(portion.tensor_bytes, 16u) << "its bytes are sent once";
    const auto tree = loop.send(batch, portion).tree();
    EXPECT_EQ(tree.tensor("a").view().data(), tree.tensor("b").view().data());
  });
}

TEST(Transfer, CopiesForACallerThatKeepsMoreThanAgreed) {
  with_loop(
      [](Loop& loop) {
        std::vector<Tree> kept;
        for (int i = 0; i < 5; ++i) {
          auto arrival = loop.send(flatten(numbers(i)), whole(flatten(numbers(i))));
          EXPECT_EQ(arrival.copied, i >= 2) << i;
          kept.push_back(arrival.tree());
        }
        for (int i = 0; i < 5; ++i) EXPECT_EQ(kept[static_cast<std::size_t>(i)], numbers(i));
        kept.clear();
        EXPECT_FALSE(loop.send(flatten(numbers(9)), whole(flatten(numbers(9)))).copied);
      },
      Access::read_only, 2);
}

TEST(Transfer, ASmallTensorDoesNotHoldALargeMessage) {
  with_loop([](Loop& loop) {
    const FlatTree batch = flatten(
        Tree::dict({{"large", Tensor::zeros(dtypes::uint8, {2 << 20})}, {"small", Tensor::of<float>({1}, {3})}}));
    auto arrival = loop.send(batch, whole(batch));
    const Tensor small = arrival.tree().tensor("small");
    arrival = {};
    EXPECT_EQ(small.as<float>()[0], 3);
    EXPECT_TRUE(std::ranges::all_of(loop.engine().holders(loop.channel()),
                                    [](const auto& holder) { return holder.leased == 0; }));
  });
}

TEST(Transfer, PrivateTensorsBelongToTheReceiver) {
  with_loop(
      [](Loop& loop) {
        const FlatTree batch = flatten(numbers(1));
        auto arrival = loop.send(batch, whole(batch));
        Tensor x = arrival.tree().tensor("x");
        ASSERT_TRUE(x.is_writable());
        x.mutable_as<std::int64_t>()[0] = 99;
        EXPECT_EQ(std::get<Tensor>(batch.leaves[0]).as<std::int64_t>()[0], 1) << "the sender's tensor is unchanged";
      },
      Access::private_);
}

TEST(Transfer, CopiesReuseTheMemoryOfTheLastBatch) {
  with_loop(
      [](Loop& loop) {
        const FlatTree batch = flatten(Tree::dict({{"x", Tensor::zeros(dtypes::uint8, {1 << 20})}}));
        auto arrival = loop.send(batch, whole(batch));
        const std::byte* const first = arrival.tree().tensor("x").view().data();
        arrival = {};
        arrival = loop.send(batch, whole(batch));
        EXPECT_EQ(arrival.tree().tensor("x").view().data(), first);
      },
      Access::copy);
}

TEST(Transfer, AnInterruptedMessageLeavesItsSchemaToTheNext) {
  inproc::run_ranks(1, [](const std::shared_ptr<Engine>& engine) {
    const auto channel = engine->open(0, {0}, 8);
    Inbox inbox(engine, channel, Access::copy, 8);
    Outbox outbox(channel);
    const auto give = [&](std::size_t bytes) { return allocate(*engine, bytes, soon(), "test"); };
    const FlatTree batch = flatten(Tree::dict({{"x", Tensor::zeros(dtypes::int64, {4})}}));
    const Portion portion = whole(batch);
    const AllocateBlock interrupted = [](std::size_t) -> Block { throw std::runtime_error("interrupted"); };
    EXPECT_THROW(static_cast<void>(outbox.prepare(batch, portion, 0, nullptr, interrupted)), std::runtime_error);
    static_cast<void>(outbox.prepare(batch, portion, 0, nullptr, give));
    for (int message = 0; message < 2; ++message) {
      PackedMessage packed = outbox.pack(batch, portion, {}, nullptr, give);
      publish(*engine, *channel, std::move(packed.block), packed.bytes, soon(), "test");
      EXPECT_EQ(inbox.try_receive()->tree().tensor("x").shape(), (Shape{4}));
    }
  });
}

TEST(Transfer, SendsAnAdoptedBlockWithoutCopying) {
  with_loop([](Loop& loop) {
    auto block = std::make_shared<Block>(allocate(loop.engine(), BlockMemory::block_bytes(800), soon(), "test"));
    std::byte* const at = block->memory().data() + message_prefix_bytes;
    FlatTree batch = flatten(Tree::dict({{"x", Tensor(TensorView(dtypes::int64, {100}, at), block, true)}}));
    std::ranges::fill(std::get<Tensor>(batch.leaves[0]).mutable_as<std::int64_t>(), 5);
    BlockMemory memory = loop.memory();
    memory.adopt(std::move(block), message_prefix_bytes + 800);
    const auto before = copied_bytes();
    batch = memory.copy_in(std::move(batch));
    const auto arrival = loop.send(batch, whole(batch), &memory);
    EXPECT_EQ(copied_bytes(), before);
    EXPECT_EQ(arrival.tree().tensor("x").as<std::int64_t>()[99], 5);
  });
}

TEST(Transfer, SendsUnalignedTensorsOfABlock) {
  with_loop([](Loop& loop) {
    BlockMemory memory = loop.memory();
    Tensor x = memory.empty(dtypes::uint8, {1000});
    std::ranges::fill(x.mutable_bytes(), std::byte{3});
    Tree tree = Tree::dict({{"part", x.slice(0, 7, 500)}});
    x = {};
    const FlatTree batch = flatten(tree);
    tree = Tree();
    EXPECT_EQ(loop.send(batch, whole(batch), &memory).tree().tensor("part").as<std::uint8_t>()[0], 3);
  });
}

TEST(Transfer, CopiedInTensorsBelongToTheBatch) {
  with_loop([](Loop& loop) {
    Tensor lent = Tensor::of<std::int64_t>({2}, {1, 2});
    BlockMemory memory = loop.memory();
    const FlatTree batch = memory.copy_in(flatten(Tree::dict({{"a", lent}, {"b", lent}})));
    lent.mutable_as<std::int64_t>()[0] = 9;
    const auto before = copied_bytes();
    const auto tree = loop.send(batch, whole(batch), &memory).tree();
    EXPECT_EQ(copied_bytes(), before);
    EXPECT_EQ(tree.tensor("a").as<std::int64_t>()[0], 1);
    EXPECT_EQ(tree.tensor("a").view().data(), tree.tensor("b").view().data()) << "aliases stay one tensor";
  });
}

TEST(Transfer, TensorsLargerThanTheCachesArriveUnchanged) {
  with_loop([](Loop& loop) {
    const std::int64_t words = static_cast<std::int64_t>(cached_write_bytes) / 8 + 5;
    Tensor x = Tensor::empty(dtypes::int64, {2, words});
    std::iota(x.mutable_as<std::int64_t>().begin(), x.mutable_as<std::int64_t>().end(), 0);
    const FlatTree batch = flatten(Tree::dict({{"rows", x}, {"part", x.slice(1, 3, words - 2)}}));
    const auto before = copied_bytes();
    const auto packed = loop.send(batch, whole(batch));
    EXPECT_EQ(copied_bytes() - before, static_cast<std::uint64_t>(2 * words + 2 * (words - 5)) * 8);
    BlockMemory memory = loop.memory();
    const FlatTree copied_in = memory.copy_in(FlatTree(batch), CopyMode::non_temporal);
    for (const Tree& tree : {packed.tree(), unflatten(copied_in)}) {
      EXPECT_TRUE(same_elements(tree.tensor("rows"), x));
      EXPECT_TRUE(same_elements(tree.tensor("part"), x.slice(1, 3, words - 2)));
    }
  });
}

TEST(Transfer, RejectsGarbageAsCorrupt) {
  with_loop([](Loop& loop) {
    Block block = allocate(loop.engine(), 256, soon(), "test");
    std::ranges::fill(block.memory(), std::byte{0x5a});
    publish(loop.engine(), loop.channel(), std::move(block), 256, soon(), "test");
    EXPECT_THROW(static_cast<void>(loop.inbox().try_receive()), CorruptMessage);
  });
}

/// Returns two rows of 8 positions, with segments of 4 and 4, and of 8.
FlatTree packed_batch() {
  std::vector<std::int64_t> values(16);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  Tensor tokens = Tensor::empty(dtypes::int64, {2, 8});
  std::ranges::copy(values, tokens.mutable_as<std::int64_t>().begin());
  return flatten(
      Tree::dict({{"tokens", tokens}, {"cu_seqlens", Tensor::of<std::int32_t>({2, 3}, {0, 4, 8, 0, 8, 8})}}));
}

std::vector<std::int64_t> tokens_of_cp_rank(Loop& loop, const FlatTree& batch, int index) {
  const Layout layout = {
      .name = "test", .rules = {{"tokens", {Zigzag{"cp", 1}}}}, .otherwise = {Replicate{"cp"}}, .stages = {}};
  const Audience audience[] = {{.from = 0, .to = {index}, .unit = 0}};
  const auto portion = make_portion(
      batch, plan_unit(fields_of(batch, PackedSegments(batch)), layout, Mesh::parse("cp=2"), audience, {}));
  const auto arrival = loop.send(batch, portion);
  EXPECT_EQ(arrival.tree().tensor("tokens").shape(), (Shape{2, 4}));
  EXPECT_EQ(arrival.tree().tensor("cu_seqlens").shape(), (Shape{2, 3})) << "every rank gets all boundaries";
  const auto tokens = arrival.tree().tensor("tokens").as<std::int64_t>();
  return {tokens.begin(), tokens.end()};
}

TEST(Transfer, ZigzagDividesEachPackedSequence) {
  with_loop([](Loop& loop) {
    const auto batch = packed_batch();
    EXPECT_THAT(tokens_of_cp_rank(loop, batch, 0), ::testing::ElementsAre(0, 3, 4, 7, 8, 9, 14, 15));
    EXPECT_THAT(tokens_of_cp_rank(loop, batch, 1), ::testing::ElementsAre(1, 2, 5, 6, 10, 11, 12, 13));
  });
}

std::string refusal_of_segments(std::initializer_list<std::int32_t> cu_seqlens) {
  const FlatTree batch = flatten(Tree::dict({{"tokens", Tensor::zeros(dtypes::int64, {1, 8})},
                                             {"cu_seqlens", Tensor::of<std::int32_t>({1, 3}, cu_seqlens)}}));
  const Layout layout = {
      .name = "test", .rules = {{"tokens", {Zigzag{"cp", 1}}}}, .otherwise = {Replicate{"cp"}}, .stages = {}};
  const Audience audience[] = {{.from = 0, .to = {0}, .unit = 0}};
  try {
    static_cast<void>(plan_unit(fields_of(batch, PackedSegments(batch)), layout, Mesh::parse("cp=2"), audience, {}));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Transfer, NamesIndivisiblePackedSequences) {
  EXPECT_EQ(refusal_of_segments({0, 4, 8}), "");
  EXPECT_THAT(refusal_of_segments({0, 6, 8}), HasSubstr("packed sequence 0 of row 0 has 6 positions, which 2*cp=4"));
  EXPECT_THAT(refusal_of_segments({0, 6, 8}), HasSubstr("--pad-to"));
  EXPECT_THAT(refusal_of_segments({0, 4, 4}), HasSubstr("must run from 0 to 8"));
  EXPECT_THAT(refusal_of_segments({0, 12, 8}), HasSubstr("decreases at entry 2"));
}

}  // namespace
}  // namespace levada
