// DLPack: tensors to and from other frameworks without a copy. The structures are declared here as DLPack 1.1 fixes
// them for every program, since a system's <dlpack/dlpack.h> may be older than the versioned one; a pointer to
// DLManagedTensor or DLManagedTensorVersioned is a pointer to these.
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

/// DLManagedTensor, which cannot say that its memory is read-only.
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
inline constexpr std::uint64_t flag_subbyte_padded = 4;  ///< each float4 or float6 has a byte of its own

/// DLPackExchangeAPI, a framework's own functions for its Python objects: without an attribute looked up. To be called
/// with the GIL; each gives 0, or leaves a Python exception.
struct ExchangeApi {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  const ExchangeApi* previous = nullptr;  ///< of an older major version
  void (*allocate)() = nullptr;
  int (*to_managed)(void* object, ManagedVersioned** managed) = nullptr;
  int (*from_managed)(ManagedVersioned* managed, void** object) = nullptr;  ///< takes `managed` over
  int (*to_fields)(void* object,
                   TensorFields* fields) = nullptr;  ///< good as long as nobody else uses `object`; or null
  void (*current_stream)() = nullptr;
};

/// Calls the producer's deleter, if there is one.
struct Delete {
  void operator()(Managed* managed) const;
  void operator()(ManagedVersioned* managed) const;
};
/// Owns what a producer handed over; release() hands it on.
using Handle = std::unique_ptr<Managed, Delete>;
using HandleVersioned = std::unique_ptr<ManagedVersioned, Delete>;

/// What the fields tell, in the producer's memory. Throws as from_dlpack() does.
TensorView view_of(const TensorFields& fields);

/// The tensor, viewing the producer's memory; its deleter is called when the last copy of the tensor goes, on whichever
/// thread that is. Writable unless it says that it is read-only. Throws Unsupported for what this version of DLPack or
/// Levada has no words for (another major version, more than 16 dimensions, unknown or padded types) and
/// InvalidArgument for fields that cannot be; the deleter is then called at once.
Tensor from_dlpack(Handle handle);
Tensor from_dlpack(HandleVersioned handle);

/// The tensor for another framework; it keeps the memory alive until its deleter is called, on any thread.
HandleVersioned to_dlpack_versioned(const Tensor& tensor);
/// The same in the older form. Throws InvalidArgument for a read-only tensor, which this form would present as
/// writable.
Handle to_dlpack(const Tensor& tensor);

}  // namespace levada::dlpack
