#include "levada/tensor/elements.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

#include "levada/base/error.h"

namespace levada {
namespace {

struct Dim {
  std::int64_t extent;
  std::int64_t stride;  // in bytes
};

// Dimensions from the outermost, without those of extent 1; adjacent dimensions that are contiguous are merged.
class Dims {
 public:
  explicit Dims(const TensorView& view) {
    const auto item = static_cast<std::int64_t>(view.dtype().bytes(1));
    for (std::size_t i = 0; i < view.shape().rank(); ++i) add({view.shape()[i], view.strides()[i] * item});
  }
  std::size_t size() const { return size_; }
  const Dim& operator[](std::size_t i) const { return dims_[i]; }
  Dim pop_inner() { return dims_[--size_]; }
  const Dim& inner() const { return dims_[size_ - 1]; }

 private:
  void add(Dim dim) {
    if (dim.extent == 1) return;
    if (size_ > 0 && dims_[size_ - 1].stride == dim.stride * dim.extent) {
      dims_[size_ - 1] = {dims_[size_ - 1].extent * dim.extent, dim.stride};
    } else {
      dims_[size_++] = dim;
    }
  }

  std::array<Dim, Shape::max_rank> dims_;
  std::size_t size_ = 0;
};

void check_on_cpu(const TensorView& view) {
  if (!view.device().is_cpu()) {
    throw InvalidArgument(fmt::format("a tensor {} {} is on device {}:{}; copy it to the CPU first",
                                      view.dtype().name(), view.shape().to_string(), view.device().type,
                                      view.device().index));
  }
}

}  // namespace

void for_each_runs(const TensorView& view, const std::function<void(const Runs&)>& visit) {
  check_on_cpu(view);
  if (view.byte_count() == 0) return;
  if (view.is_contiguous()) return visit({view.data(), view.byte_count(), 1, 0});

  Dims dims(view);
  Runs runs{view.data(), view.dtype().bytes(1), 1, 0};
  if (dims.inner().stride == static_cast<std::int64_t>(runs.run_bytes)) {
    runs.run_bytes *= static_cast<std::size_t>(dims.pop_inner().extent);
  }
  if (dims.size() > 0) {
    const auto dim = dims.pop_inner();
    runs.count = static_cast<std::size_t>(dim.extent);
    runs.stride = dim.stride;
  }

  std::array<std::int64_t, Shape::max_rank> index{};
  std::int64_t at = 0;
  for (;;) {
    runs.data = view.data() + at;
    visit(runs);
    std::size_t dim = dims.size();
    for (; dim > 0; --dim) {
      at += dims[dim - 1].stride;
      if (++index[dim - 1] < dims[dim - 1].extent) break;
      at -= dims[dim - 1].stride * dims[dim - 1].extent;
      index[dim - 1] = 0;
    }
    if (dim == 0) return;
  }
}

void copy_elements(const TensorView& from, std::byte* to) {
  copy_elements(from, to, CopyMode::cached);
}

void copy_elements(const TensorView& from, std::byte* to, CopyMode way) {
  for_each_runs(from, [&to, way](const Runs& runs) {
    if (runs.count == 1) copy_payload(to, runs.data, runs.run_bytes, way);
    else copy_payload_strided(to, runs.data, runs.run_bytes, runs.count, runs.stride, way);
    to += runs.run_bytes * runs.count;
  });
}

bool same_elements(const TensorView& a, const TensorView& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  check_on_cpu(a);
  check_on_cpu(b);
  if (a.byte_count() == 0) return true;
  if (a.is_contiguous() && b.is_contiguous()) return std::memcmp(a.data(), b.data(), a.byte_count()) == 0;
  const auto gather = [](const TensorView& view) {
    Bytes bytes;
    bytes.reserve(view.byte_count());
    for_each_runs(view, [&bytes](const Runs& runs) {
      for (std::size_t i = 0; i < runs.count; ++i) {
        const auto* run = runs.data + static_cast<std::ptrdiff_t>(i) * runs.stride;
        bytes.insert(bytes.end(), run, run + runs.run_bytes);
      }
    });
    return bytes;
  };
  return gather(a) == gather(b);
}

}  // namespace levada
