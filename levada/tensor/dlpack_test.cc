#include "levada/tensor/dlpack.h"

#include <gtest/gtest.h>

#include <array>

#include "levada/base/error.h"
#include "levada/tensor/elements.h"

namespace levada::dlpack {
namespace {

// A producer's tensor that counts calls of its deleter.
template <typename Form>
struct Foreign {
  std::array<std::int32_t, 6> values = {0, 1, 2, 3, 4, 5};
  std::array<std::int64_t, 2> shape = {2, 3};
  std::array<std::int64_t, 2> strides = {3, 1};
  int deleted = 0;
  Form managed;

  Foreign() {
    managed.tensor = {values.data(), {}, 2, dtypes::int32, shape.data(), strides.data(), 0};
    managed.context = this;
    managed.deleter = [](Form* self) { ++static_cast<Foreign*>(self->context)->deleted; };
  }
  std::unique_ptr<Form, Delete> handle() { return std::unique_ptr<Form, Delete>(&managed); }
};

template <typename Form>
class DlpackForms : public ::testing::Test {};
using Forms = ::testing::Types<Managed, ManagedVersioned>;
TYPED_TEST_SUITE(DlpackForms, Forms);

TYPED_TEST(DlpackForms, IsViewedWithoutACopyAndDeletedOnceWithTheLastTensor) {
  Foreign<TypeParam> foreign;
  {
    Tensor tensor = from_dlpack(foreign.handle());
    const auto part = tensor.slice(0, 1, 2);
    EXPECT_EQ(tensor.as<std::int32_t>().data(), foreign.values.data());
    EXPECT_TRUE(tensor.is_writable());
    tensor = {};
    EXPECT_EQ(foreign.deleted, 0);
    EXPECT_EQ(part.as<std::int32_t>()[0], 3);
  }
  EXPECT_EQ(foreign.deleted, 1);
}

TYPED_TEST(DlpackForms, AcceptsMissingStridesAndAByteOffset) {
  Foreign<TypeParam> foreign;
  foreign.managed.tensor.strides = nullptr;
  foreign.managed.tensor.byte_offset = 4;
  foreign.shape = {1, 5};
  const Tensor tensor = from_dlpack(foreign.handle());
  EXPECT_EQ(tensor.as<std::int32_t>()[4], 5);
}

TYPED_TEST(DlpackForms, AcceptsNegativeStrides) {
  Foreign<TypeParam> foreign;
  foreign.strides = {-3, -1};
  foreign.managed.tensor.byte_offset = 5 * sizeof(std::int32_t);
  const Tensor tensor = Tensor::copy_of(from_dlpack(foreign.handle()));
  EXPECT_EQ(tensor.as<std::int32_t>()[0], 5);
  EXPECT_EQ(tensor.as<std::int32_t>()[5], 0);
}

TYPED_TEST(DlpackForms, IsDeletedIfRejected) {
  const auto refused = [](auto change) {
    Foreign<TypeParam> foreign;
    change(foreign.managed.tensor);
    EXPECT_THROW(from_dlpack(foreign.handle()), Error);
    EXPECT_EQ(foreign.deleted, 1);
  };
  std::array<std::int64_t, 17> many{};
  many.fill(1);
  refused([](TensorFields& fields) { fields.dtype = {3, 64}; });
  refused([](TensorFields& fields) { fields.ndim = -1; });
  refused([](TensorFields& fields) { fields.shape = nullptr; });
  refused([](TensorFields& fields) { fields.shape[0] = -2; });
  refused([](TensorFields& fields) { fields.data = nullptr; });
  refused([&many](TensorFields& fields) {
    fields.ndim = 17;
    fields.shape = many.data();
  });
}

TYPED_TEST(DlpackForms, AcceptsAMissingDeleter) {
  Foreign<TypeParam> foreign;
  foreign.managed.deleter = nullptr;
  const Tensor tensor = from_dlpack(foreign.handle());
  EXPECT_EQ(tensor.as<std::int32_t>()[1], 1);
}

TEST(Dlpack, RejectsAnEmptyHandle) {
  EXPECT_THROW(from_dlpack(Handle()), InvalidArgument);
  EXPECT_THROW(from_dlpack(HandleVersioned()), InvalidArgument);
}

TEST(Dlpack, RespectsTheReadOnlyFlag) {
  Foreign<ManagedVersioned> foreign;
  foreign.managed.flags = flag_read_only;
  auto tensor = from_dlpack(foreign.handle());
  EXPECT_FALSE(tensor.is_writable());
  EXPECT_THROW(tensor.mutable_bytes(), InvalidArgument);
  EXPECT_EQ(to_dlpack_versioned(tensor)->flags, flag_read_only);
  EXPECT_THROW(to_dlpack(tensor), InvalidArgument);
}

TEST(Dlpack, DeletesAnotherMajorVersionWithoutReadingIt) {
  Foreign<ManagedVersioned> foreign;
  foreign.managed.major = 2;
  foreign.managed.tensor.shape = reinterpret_cast<std::int64_t*>(1);
  EXPECT_THROW(from_dlpack(foreign.handle()), Unsupported);
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(Dlpack, RejectsPaddedSubByteTypes) {
  Foreign<ManagedVersioned> foreign;
  foreign.managed.tensor.dtype = dtypes::float4_e2m1fn;
  foreign.managed.flags = flag_subbyte_padded;
  EXPECT_THROW(from_dlpack(foreign.handle()), Unsupported);
}

TEST(Dlpack, ExportedTensorsKeepTheirMemoryAlive) {
  auto tensor = Tensor::of<std::int32_t>({2, 3}, {0, 1, 2, 3, 4, 5});
  const std::weak_ptr<const void> memory = tensor.owner();
  auto versioned = to_dlpack_versioned(tensor);
  auto plain = to_dlpack(tensor);
  EXPECT_EQ(versioned->tensor.data, tensor.bytes().data());
  EXPECT_EQ(versioned->flags, 0U);
  EXPECT_EQ(plain->tensor.shape[1], 3);
  EXPECT_EQ(plain->tensor.strides[0], 3);
  tensor = {};
  plain = nullptr;
  EXPECT_FALSE(memory.expired());
  versioned = nullptr;
  EXPECT_TRUE(memory.expired());
}

TEST(Dlpack, ExportRoundTrips) {
  for (const auto& dtype : {dtypes::bfloat16, dtypes::float8_e5m2fnuz, dtypes::float4_e2m1fn, dtypes::boolean}) {
    for (const auto& shape : {Shape{}, Shape{5}, Shape{3, 0}, Shape{2, 3, 4}}) {
      const auto tensor = Tensor::zeros(dtype, shape);
      const auto plain = from_dlpack(to_dlpack(tensor));
      const auto versioned = from_dlpack(to_dlpack_versioned(tensor));
      EXPECT_EQ(plain.view().data(), tensor.view().data()) << shape.to_string();
      EXPECT_TRUE(same_elements(plain, tensor));
      EXPECT_TRUE(same_elements(versioned, tensor));
    }
  }
}

TEST(Dlpack, KeepsTheDevice) {
  const Tensor tensor(TensorView(dtypes::float32, {4}, reinterpret_cast<const std::byte*>(256), Device{2, 3}), nullptr);
  const auto back = from_dlpack(to_dlpack_versioned(tensor));
  EXPECT_EQ(back.view().device(), (Device{2, 3}));
}

}  // namespace
}  // namespace levada::dlpack
