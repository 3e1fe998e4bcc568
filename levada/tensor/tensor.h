// Tensors. A TensorView borrows its memory; a Tensor keeps it alive.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "levada/base/bytes.h"
#include "levada/tensor/dtype.h"
#include "levada/tensor/shape.h"

namespace levada {

/// DLPack's DLDevice. {1, 0} is this machine's memory.
struct Device {
  std::int32_t type = 1;
  std::int32_t index = 0;
  bool operator==(const Device&) const = default;
  bool is_cpu() const { return type == 1; }
};

/// Returns the number of bytes that the elements of such a tensor take, or nothing if an extent is negative or the
/// elements do not fit in memory.
std::optional<std::size_t> tensor_bytes(DType dtype, const Shape& shape);

/// A read-only view of elements, which it does not own. A value. The memory must outlive it.
class TensorView {
 public:
  TensorView() = default;
  /// Views C-contiguous elements. Throws InvalidArgument if an extent is negative or the elements do not fit in memory.
  TensorView(DType dtype, const Shape& shape, const std::byte* data, Device device = {});
  /// `strides` are in elements and may be zero or negative. Also throws InvalidArgument if a sub-byte type is not
  /// contiguous.
  TensorView(DType dtype, const Shape& shape, const Shape& strides, const std::byte* data, Device device = {});

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  const std::byte* data() const { return data_; }
  Device device() const { return device_; }
  std::size_t element_count() const { return count_; }
  /// Returns the number of bytes that the elements take, regardless of strides.
  std::size_t byte_count() const { return dtype_.bytes(count_); }
  bool is_contiguous() const;
  /// Returns the elements' bytes. Throws InvalidArgument unless the tensor is contiguous and in this machine's memory.
  ByteView bytes() const;
  /// Returns the elements. Throws InvalidArgument unless the tensor is contiguous and on the CPU, and T is the dtype's
  /// C++ type.
  template <typename T>
  std::span<const T> as() const {
    check_type(dtype_of<T>());
    return {reinterpret_cast<const T*>(bytes().data()), count_};
  }
  /// Returns elements [begin, end) along `dim`; shares the memory. Throws InvalidArgument if out of range.
  TensorView slice(std::size_t dim, std::int64_t begin, std::int64_t end) const;

 private:
  void check_type(DType wanted) const;

  DType dtype_;
  Shape shape_, strides_;
  const std::byte* data_ = nullptr;
  Device device_;
  std::size_t count_ = 0;
};

/// Copies the elements of `from`, with any strides, in C order to `to`, which has room for from.byte_count() bytes.
/// Counts the bytes as copied payload. CPU only.
void copy_elements(const TensorView& from, std::byte* to);

/// A TensorView and the owner of its memory, which is an allocation or the lease of a message. Copies share the memory.
/// A tensor is writable or read-only. A tensor received by reference from another rank is read-only.
class Tensor {
 public:
  Tensor() = default;
  /// Wraps memory that `owner` keeps alive.
  Tensor(TensorView view, std::shared_ptr<const void> owner, bool writable = false)
      : view_(view), owner_(std::move(owner)), writable_(writable) {}
  /// Allocate 64-byte aligned memory. empty() leaves it uninitialized.
  static Tensor empty(DType dtype, const Shape& shape);
  static Tensor zeros(DType dtype, const Shape& shape);
  /// Returns a contiguous copy.
  static Tensor copy_of(const TensorView& view);
  /// Returns a tensor with these values: of<std::int64_t>({2, 2}, {1, 2, 3, 4}). Throws InvalidArgument if their number
  /// does not match the shape.
  template <typename T>
  static Tensor of(const Shape& shape, std::initializer_list<T> values) {
    return copy_of(checked_view(dtype_of<T>(), shape, std::as_bytes(std::span(values.begin(), values.size()))));
  }

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  DType dtype() const { return view_.dtype(); }
  const Shape& shape() const { return view_.shape(); }
  ByteView bytes() const { return view_.bytes(); }
  template <typename T>
  std::span<const T> as() const {
    return view_.as<T>();
  }
  Tensor slice(std::size_t dim, std::int64_t begin, std::int64_t end) const {
    return Tensor(view_.slice(dim, begin, end), owner_, writable_);
  }
  bool is_writable() const { return writable_; }
  /// Returns the elements' bytes, writable. Throws InvalidArgument if the tensor is read-only, or as bytes() does.
  std::span<std::byte> mutable_bytes();
  template <typename T>
  std::span<T> mutable_as() {
    static_cast<void>(view_.as<T>());
    return {reinterpret_cast<T*>(mutable_bytes().data()), view_.element_count()};
  }
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  static TensorView checked_view(DType dtype, const Shape& shape, ByteView bytes);

  TensorView view_;
  std::shared_ptr<const void> owner_;
  bool writable_ = false;
};

/// Allocates a producer's tensors in an engine's memory, from which they are sent without copying, or on the heap. Used
/// by one thread at a time.
class Memory {
 public:
  virtual ~Memory() = default;
  /// Announces that about `bytes` will be allocated in total, so that the tensors can be adjacent. A hint.
  virtual void reserve(std::size_t bytes) = 0;
  /// Returns a tensor that is writable, C-contiguous, 64-byte aligned and uninitialized.
  virtual Tensor empty(DType dtype, const Shape& shape) = 0;
};

/// Allocates tensors on the heap.
class HeapMemory final : public Memory {
 public:
  void reserve(std::size_t) override {}
  Tensor empty(DType dtype, const Shape& shape) override { return Tensor::empty(dtype, shape); }
};

}  // namespace levada
