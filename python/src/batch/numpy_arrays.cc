#include "python/src/batch/numpy_arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "levada/base/error.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

// numpy's function table keeps its order across versions, so a binary runs with later ones.
constexpr std::size_t array_type_at = 2, new_from_descriptor_at = 94, set_base_at = 282;
using NewFromDescriptor = PyObject* (*)(void* type, PyObject* descriptor, int ndim, const Py_ssize_t* shape,
                                        const Py_ssize_t* strides, void* data, int flags, PyObject* like);
using SetBase = int (*)(PyObject* array, PyObject* base);
constexpr int writable_flag = 0x400;

void* const* find_functions() {
  nb::module_::import_("numpy");
  for (const char* module : {"numpy._core.multiarray", "numpy.core.multiarray"}) {
    const nb::object table = nb::getattr(imported(module), "_ARRAY_API", nb::none());
    if (PyCapsule_CheckExact(table.ptr()) == 0) continue;
    return static_cast<void* const*>(PyCapsule_GetPointer(table.ptr(), PyCapsule_GetName(table.ptr())));
  }
  throw Unsupported("this numpy does not export its C functions");
}

/// Returns numpy's own dtype, or one of ml_dtypes.
nb::object find_descriptor(DType dtype) {
  const nb::object numpy = imported("numpy");
  const auto name = dtype.name();
  const bool is_own =
      dtype.is_byte_sized() && dtype.lanes == 1 && dtype.code < 7 && dtype.code != dtypes::bfloat16.code;
  const nb::object module = is_own ? numpy : imported("ml_dtypes");
  const nb::object type = nb::getattr(module, name == "bool" ? "bool_" : name.c_str(), nb::none());
  if (!type.is_none() && dtype.is_byte_sized()) return numpy.attr("dtype")(type);
  throw Unsupported(fmt::format("numpy has no dtype {}; import ml_dtypes on every rank", name));
}

}  // namespace

nb::object imported(const char* module) {
  PyObject* found = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  return found == nullptr ? nb::none() : nb::borrow(found);
}

nb::object NumpyArrays::descriptor(DType dtype) const {
  const auto known = std::ranges::find(descriptors_, dtype, &std::pair<DType, nb::object>::first);
  if (known != descriptors_.end()) return known->second;
  return descriptors_.emplace_back(dtype, find_descriptor(dtype)).second;
}

nb::object NumpyArrays::make(const Tensor& tensor, bool writable) const {
  if (functions_ == nullptr) functions_ = find_functions();
  const TensorView& view = tensor.view();
  nb::object of = descriptor(view.dtype());
  std::array<Py_ssize_t, Shape::max_rank> strides{};
  const auto item = static_cast<Py_ssize_t>(view.dtype().bytes(1));
  std::ranges::transform(view.strides(), strides.begin(), [item](std::int64_t stride) { return stride * item; });
  // Without a data pointer numpy would allocate, and an empty tensor has none.
  static std::byte nothing{};
  auto* data = view.data() == nullptr ? &nothing : const_cast<std::byte*>(view.data());
  auto* const made = reinterpret_cast<NewFromDescriptor>(functions_[new_from_descriptor_at])(
      functions_[array_type_at], of.release().ptr(), static_cast<int>(view.shape().rank()), view.shape().begin(),
      strides.data(), data, writable ? writable_flag : 0, nullptr);
  if (made == nullptr) throw nb::python_error();
  nb::object array = nb::steal(made);
  using Owner = std::shared_ptr<const void>;
  nb::capsule owner(new Owner(tensor.owner()), [](void* held) noexcept { delete static_cast<Owner*>(held); });
  if (reinterpret_cast<SetBase>(functions_[set_base_at])(made, owner.release().ptr()) != 0) throw nb::python_error();
  return array;
}

}  // namespace levada::python
