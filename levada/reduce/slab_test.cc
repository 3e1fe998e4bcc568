#include "levada/reduce/slab.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "levada/engine/inproc/inproc.h"
#include "levada/reduce/tensor_slabs.h"

namespace levada {
namespace {

class Slabs : public ::testing::Test {
 protected:
  std::shared_ptr<Slab> make(std::size_t bytes) const {
    return std::make_shared<Slab>(*engine_, *engine_->try_allocate(Slab::block_bytes(bytes)));
  }
  bool is_next(const Slab& slab, const TensorView& tensor) const { return slab.is_next(*engine_, tensor); }

  std::shared_ptr<Engine> engine_ = inproc::make_group(1).front();
};

TEST_F(Slabs, PlaceTensorsLikeALayout) {
  const BucketLayout layout({.dtype = dtypes::float32, .pieces = {{5}, {0}, {100}, {1}}}, 1);
  const auto slab = make(layout.bytes());
  std::vector<Tensor> tensors;
  for (const Shape& piece : layout.spec().pieces) tensors.push_back(slab->make_tensor(dtypes::float32, piece));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].view().data(), slab->data() + MessageHeader::bytes + layout.offset(i)) << i;
    EXPECT_TRUE(is_next(*slab, tensors[i])) << i;
    slab->enter_next();
  }
  const BucketMessage message = slab->send();
  EXPECT_EQ(message.bytes, MessageHeader::bytes + layout.bytes());
  EXPECT_EQ(message.num_inputs, 4U);
}

TEST_F(Slabs, HaveRoomForTheirWholeBlock) {
  const auto slab = make(4096 - MessageHeader::bytes);
  EXPECT_TRUE(slab->has_room(4096 - MessageHeader::bytes));
  EXPECT_FALSE(slab->has_room(4096 - MessageHeader::bytes + 1));
  slab->reserve(1);
  EXPECT_FALSE(slab->has_room(4096 - MessageHeader::bytes - 63));
  EXPECT_TRUE(slab->has_room(4096 - MessageHeader::bytes - 64));
}

TEST_F(Slabs, EnterTensorsInTheOrderOfCreation) {
  const auto slab = make(1 << 20);
  const Tensor first = slab->make_tensor(dtypes::float32, {100});
  const Tensor second = slab->make_tensor(dtypes::float32, {100});
  EXPECT_FALSE(is_next(*slab, second));
  EXPECT_TRUE(is_next(*slab, TensorView(dtypes::float32, {10, 10}, first.view().data())));
  EXPECT_FALSE(is_next(*slab, first.view().slice(0, 0, 99)));
  EXPECT_FALSE(slab->is_next(*inproc::make_group(1).front(), first));
  slab->enter_next();
  EXPECT_FALSE(is_next(*slab, first));
  EXPECT_TRUE(is_next(*slab, second));
}

TEST_F(Slabs, SendOnlyEnteredTensors) {
  const auto slab = make(1 << 20);
  const Tensor first = slab->make_tensor(dtypes::uint8, {100});
  Tensor second = slab->make_tensor(dtypes::uint8, {100});
  slab->enter_next();
  {
    const BucketMessage message = slab->send();
    EXPECT_EQ(message.bytes, MessageHeader::bytes + 128);
    EXPECT_EQ(message.num_inputs, 1U);
  }
  EXPECT_FALSE(is_next(*slab, second));
  // The message has been released, but not the memory of the second tensor.
  std::ranges::fill(second.mutable_bytes(), std::byte{7});
  EXPECT_GT(engine_->memory_in_use(), 0U);
  second = {};
  EXPECT_EQ(engine_->memory_in_use(), 0U);
}

TEST_F(Slabs, AreReleasedWithTheirMessageDespiteLivingTensors) {
  auto slab = make(1 << 20);
  const Tensor tensor = slab->make_tensor(dtypes::uint8, {100});
  slab->enter_next();
  BucketMessage message = slab->send();
  slab.reset();
  EXPECT_GT(engine_->memory_in_use(), 0U);
  message = {};
  EXPECT_EQ(engine_->memory_in_use(), 0U);
}

TEST(TensorSlabs, ReleaseTheSlabOfAGroupOnLeave) {
  const std::shared_ptr<Engine> group = inproc::make_group(1).front(), other = inproc::make_group(1).front();
  TensorSlabs slabs(1 << 20);
  int made = 0;
  const auto next = [&](Engine& engine) {
    return slabs.next(engine, dtypes::float32, 400, {}, [&](std::size_t bytes) {
      ++made;
      return std::make_shared<Slab>(engine, *engine.try_allocate(Slab::block_bytes(bytes)));
    });
  };
  static_cast<void>(next(*group)->make_tensor(dtypes::float32, {100}));
  const auto others = next(*other);
  const Tensor tensor = others->make_tensor(dtypes::float32, {100});
  slabs.leave(*group);
  EXPECT_EQ(group->memory_in_use(), 0U);
  EXPECT_GT(other->memory_in_use(), 0U);
  EXPECT_EQ(slabs.find(*other, tensor.view()), others);  // entering it still copies nothing
  EXPECT_EQ(made, 2);
  next(*group);  // or another group, at its address
  EXPECT_EQ(made, 3);
}

}  // namespace
}  // namespace levada
