#include "levada/tensor/dlpack.h"

#include <fmt/format.h>

#include <cstddef>
#include <type_traits>

#include "levada/base/error.h"

namespace levada::dlpack {
namespace {

// The layout is DLPack's contract on 64-bit machines.
static_assert(sizeof(Device) == 8 && sizeof(DType) == 4 && offsetof(DType, lanes) == 2);
static_assert(offsetof(TensorFields, device) == 8 && offsetof(TensorFields, ndim) == 16 &&
              offsetof(TensorFields, dtype) == 20 && offsetof(TensorFields, shape) == 24 &&
              offsetof(TensorFields, strides) == 32 && offsetof(TensorFields, byte_offset) == 40 &&
              sizeof(TensorFields) == 48);
static_assert(offsetof(Managed, context) == 48 && offsetof(Managed, deleter) == 56 && sizeof(Managed) == 64);
static_assert(offsetof(ManagedVersioned, context) == 8 && offsetof(ManagedVersioned, deleter) == 16 &&
              offsetof(ManagedVersioned, flags) == 24 && offsetof(ManagedVersioned, tensor) == 32 &&
              sizeof(ManagedVersioned) == 80);
static_assert(offsetof(ExchangeApi, previous) == 8 && offsetof(ExchangeApi, to_managed) == 24 &&
              offsetof(ExchangeApi, to_fields) == 40 && sizeof(ExchangeApi) == 56);
static_assert(std::is_standard_layout_v<Managed> && std::is_standard_layout_v<ManagedVersioned>);

// Owns an exported tensor; the context of its DLPack structure.
template <typename Form>
struct Export {
  Form managed;
  Tensor tensor;
};

template <typename Form>
std::unique_ptr<Form, Delete> make_export(const Tensor& tensor) {
  auto made = std::make_unique<Export<Form>>(Export<Form>{{}, tensor});
  const auto extents_of = [](const Shape& shape) { return const_cast<std::int64_t*>(shape.begin()); };
  auto& fields = made->managed.tensor;
  // DLPack requires null if there are no elements.
  if (tensor.view().byte_count() > 0) fields.data = const_cast<std::byte*>(tensor.view().data());
  fields.device = tensor.view().device();
  fields.ndim = static_cast<std::int32_t>(tensor.shape().rank());
  fields.dtype = tensor.dtype();
  if (fields.ndim > 0) {
    fields.shape = extents_of(made->tensor.shape());
    fields.strides = extents_of(made->tensor.view().strides());
  }
  made->managed.context = made.get();
  made->managed.deleter = [](Form* self) { delete static_cast<Export<Form>*>(self->context); };
  return std::unique_ptr<Form, Delete>(&made.release()->managed);
}

}  // namespace

TensorView view_of(const TensorFields& fields) {
  if (!fields.dtype.is_known()) {
    throw Unsupported(fmt::format("a DLPack tensor of unknown type {}", fields.dtype.name()));
  }
  if (fields.ndim < 0 || (fields.ndim > 0 && fields.shape == nullptr)) {
    throw InvalidArgument(fmt::format("a DLPack tensor of {} dimensions without a shape", fields.ndim));
  }
  const auto rank = static_cast<std::size_t>(fields.ndim);
  if (rank > Shape::max_rank) {
    throw Unsupported(fmt::format("a DLPack tensor of {} dimensions; the maximum is {}", rank, Shape::max_rank));
  }
  const Shape shape(std::span(fields.shape, rank));
  const Shape strides = fields.strides ? Shape(std::span(fields.strides, rank)) : shape.contiguous_strides();
  const auto* data = static_cast<const std::byte*>(fields.data);
  const TensorView view(fields.dtype, shape, strides, data ? data + fields.byte_offset : nullptr, fields.device);
  if (data == nullptr && view.byte_count() > 0) {
    throw InvalidArgument(fmt::format("a DLPack tensor {} {} without memory", fields.dtype.name(), shape.to_string()));
  }
  return view;
}

void Delete::operator()(Managed* managed) const {
  if (managed->deleter) managed->deleter(managed);
}

void Delete::operator()(ManagedVersioned* managed) const {
  if (managed->deleter) managed->deleter(managed);
}

Tensor from_dlpack(Handle handle) {
  if (!handle) throw InvalidArgument("an empty DLPack handle");
  const auto view = view_of(handle->tensor);
  return Tensor(view, std::shared_ptr<const void>(std::move(handle)), true);
}

Tensor from_dlpack(HandleVersioned handle) {
  if (!handle) throw InvalidArgument("an empty DLPack handle");
  if (handle->major != 1) {
    throw Unsupported(
        fmt::format("a tensor of DLPack {}.{}; this build knows version 1", handle->major, handle->minor));
  }
  const bool padded = (handle->flags & flag_subbyte_padded) != 0;
  const auto view = view_of(handle->tensor);
  if (padded && !view.dtype().is_byte_sized()) {
    throw Unsupported(fmt::format("a DLPack tensor of {} with a byte for each element; pack it", view.dtype().name()));
  }
  const bool writable = (handle->flags & flag_read_only) == 0;
  return Tensor(view, std::shared_ptr<const void>(std::move(handle)), writable);
}

HandleVersioned to_dlpack_versioned(const Tensor& tensor) {
  auto handle = make_export<ManagedVersioned>(tensor);
  if (!tensor.is_writable()) handle->flags |= flag_read_only;
  return handle;
}

Handle to_dlpack(const Tensor& tensor) {
  if (!tensor.is_writable()) {
    throw InvalidArgument(
        fmt::format("a tensor {} {} is read-only, which unversioned DLPack cannot say; use the versioned form",
                    tensor.dtype().name(), tensor.shape().to_string()));
  }
  return make_export<Managed>(tensor);
}

}  // namespace levada::dlpack
