// DLPack: exchanges tensors with other frameworks without a copy. The structures are declared here with DLPack 1.1's
// fixed ABI, because a system's <dlpack/dlpack.h> may predate DLManagedTensorVersioned. Pointers to DLManagedTensor and
// DLManagedTensorVersioned are pointers to these.
#pragma once

#include <cstdint>
#include <memory>

#include "levada/tensor/tensor.h"

namespace levada::dlpack {

/// DLTensor.
struct TensorFields {
  void* data = nullptr;
  Device device;
  std::int32_t ndim = 0;
  DType dtype;
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;  ///< in elements; null means C-contiguous
  std::uint64_t byte_offset = 0;
};

/// DLManagedTensor, which cannot mark its memory as read-only.
struct Managed {
  TensorFields tensor;
  void* context = nullptr;
  void (*deleter)(Managed*) = nullptr;
};

/// DLManagedTensorVersioned.
struct ManagedVersioned {
  std::uint32_t major = 1;
  std::uint32_t minor = 1;
  void* context = nullptr;
  void (*deleter)(ManagedVersioned*) = nullptr;
  std::uint64_t flags = 0;
  TensorFields tensor;
};

inline constexpr std::uint64_t flag_read_only = 1;
inline constexpr std::uint64_t flag_subbyte_padded = 4;  ///< each float4 or float6 takes a whole byte

/// DLPackExchangeAPI: a framework's C functions for its Python objects, which save attribute lookups. Call them with
/// the GIL held. Each returns 0, or fails with a Python exception set.
struct ExchangeApi {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  const ExchangeApi* previous = nullptr;  ///< table of an older major version
  void (*allocate)() = nullptr;
  int (*to_managed)(void* object, ManagedVersioned** managed) = nullptr;
  int (*from_managed)(ManagedVersioned* managed, void** object) = nullptr;  ///< takes ownership of `managed`
  int (*to_fields)(void* object,
                   TensorFields* fields) = nullptr;  ///< valid as long as no other code uses `object`; may be null
  void (*current_stream)() = nullptr;
};

/// Calls the producer's deleter, if there is one.
struct Delete {
  void operator()(Managed* managed) const;
  void operator()(ManagedVersioned* managed) const;
};
/// Owns a tensor that a producer has handed over; release() passes the ownership on.
using Handle = std::unique_ptr<Managed, Delete>;
using HandleVersioned = std::unique_ptr<ManagedVersioned, Delete>;

/// Returns a view of the fields in the producer's memory. Throws as from_dlpack() does.
TensorView view_of(const TensorFields& fields);

/// Returns a tensor that views the producer's memory. It is writable unless flagged read-only. The deleter is called
/// when the last copy of the tensor is destroyed, on the thread that destroys it. Throws Unsupported for anything that
/// this version of DLPack or Levada cannot express (another major version, more than 16 dimensions, unknown or padded
/// types), and InvalidArgument for invalid fields. If it throws, the deleter is called at once.
Tensor from_dlpack(Handle handle);
Tensor from_dlpack(HandleVersioned handle);

/// Exports the tensor to another framework. Keeps its memory alive until the deleter is called, on any thread.
HandleVersioned to_dlpack_versioned(const Tensor& tensor);
/// Exports the tensor in the older form. Throws InvalidArgument for a read-only tensor, which this form would present
/// as writable.
Handle to_dlpack(const Tensor& tensor);

}  // namespace levada::dlpack
