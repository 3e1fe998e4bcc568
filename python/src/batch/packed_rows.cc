// Packs fields of samples into the fields of packed rows.
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <vector>

#include "levada/base/error.h"
#include "levada/tensor/packed_row.h"
#include "python/src/batch/tensors.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

/// Packing a smaller row takes less time than another thread needs to acquire and release the GIL.
constexpr std::size_t small_row = std::size_t{64} << 10;

/// A function of the stable ABI that returns an item of a list or a tuple.
using GetItem = PyObject* (*)(PyObject*, Py_ssize_t);

template <typename T, typename Read>
std::optional<Tensor> numbers(nb::handle list, Py_ssize_t size, GetItem item_of, Read read) {
  Tensor tensor = Tensor::empty(dtype_of<T>(), {size});
  auto to = tensor.mutable_as<T>().begin();
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!read(item_of(list.ptr(), i), *to++)) return std::nullopt;
  }
  return tensor;
}

/// Returns a list or tuple as the array that numpy would make of it, if all items are 64-bit integers or all are
/// floats.
std::optional<Tensor> numbers_of(nb::handle list) {
  const Py_ssize_t size = PySequence_Size(list.ptr());
  if (size == 0) return std::nullopt;
  const GetItem item_of = PyList_CheckExact(list.ptr()) ? PyList_GetItem : PyTuple_GetItem;
  if (PyFloat_CheckExact(item_of(list.ptr(), 0))) {
    return numbers<double>(list, size, item_of, [](PyObject* item, double& number) {
      if (!PyFloat_CheckExact(item)) return false;
      number = PyFloat_AsDouble(item);
      return true;
    });
  }
  return numbers<std::int64_t>(list, size, item_of, [](PyObject* item, std::int64_t& number) {
    if (!PyLong_CheckExact(item)) return false;
    int overflow = 0;
    number = PyLong_AsLongLongAndOverflow(item, &overflow);
    return overflow == 0;
  });
}

/// Returns the tensors of a field, all torch's or none; empty if one is not a tensor or is not as long as its sample.
std::vector<Tensor> segments_of(nb::handle values, std::span<const std::int64_t> lengths, const std::string& field,
                                const nb::object& convert) {
  const TensorLibraries libraries;
  std::vector<Tensor> segments;
  segments.reserve(lengths.size());
  std::size_t of_torch = 0;
  for (nb::handle value : values) {
    const bool is_list = PyList_CheckExact(value.ptr()) || PyTuple_CheckExact(value.ptr());
    const auto length = lengths[segments.size()];
    if (is_list && PySequence_Size(value.ptr()) != length) return {};
    auto kind = TensorKind::array;
    auto segment = is_list ? numbers_of(value) : libraries.plain_array(value);
    if (!segment && !is_list) {
      segment = libraries.plain_tensor(value);
      if (segment) kind = TensorKind::torch;
    }
    if (!segment) {
      const nb::object tensor = convert(value);
      if (tensor.is_none()) return {};
      libraries.is_tensor(tensor, kind);
      segment = libraries.from_python(tensor, kind, field);
    }
    if (segment->shape().rank() == 0 || segment->shape()[0] != length) return {};
    of_torch += is_torch(kind) ? 1 : 0;
    segments.push_back(*std::move(segment));
  }
  return of_torch == 0 || of_torch == segments.size() ? std::move(segments) : std::vector<Tensor>();
}

nb::object pack_field(const std::string& field, nb::handle values, const std::vector<std::int64_t>& lengths,
                      const std::vector<std::int64_t>& begins, std::int64_t size, const nb::object& convert,
                      const nb::object& make) {
  const auto segments = segments_of(values, lengths, field, convert);
  if (segments.empty()) return nb::none();
  const std::vector<TensorView> views(segments.begin(), segments.end());
  try {
    check_segments(views);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("field {} of a packed row: {}", field, error.what()));
  }
  nb::list shape;
  shape.append(1);
  shape.append(size);
  for (std::size_t dim = 1; dim < views.front().shape().rank(); ++dim) shape.append(views.front().shape()[dim]);
  const nb::object made = make(shape, views.front().dtype().name());

  const TensorLibraries libraries;
  const auto tensor_of = [&](nb::handle value) {
    TensorKind kind{};
    libraries.is_tensor(value, kind);
    return libraries.from_python(value, kind, field);
  };
  nb::object row = made[0];
  const nb::object element = made[1];
  const auto padding = element.is_none() ? std::nullopt : std::optional(tensor_of(element));
  const auto bytes = tensor_of(row).bytes();
  const std::span to(const_cast<std::byte*>(bytes.data()), bytes.size());
  std::optional<nb::gil_scoped_release> released;
  if (bytes.size() >= small_row) released.emplace();
  pack_row(views, begins, padding ? padding->bytes() : ByteView(), to);
  released.reset();
  return row;
}

}  // namespace

void bind_packed_rows(nb::module_& module) {
  module.def(
      "pack_field", &pack_field, nb::arg("field"), nb::arg("values"), nb::arg("lengths"), nb::arg("begins"),
      nb::arg("size"), nb::arg("convert"), nb::arg("make"),
      nb::sig("def pack_field(field: str, values: list[typing.Any], lengths: collections.abc.Sequence[int], begins: "
              "collections.abc.Sequence[int], size: int, convert: collections.abc.Callable[[typing.Any], typing.Any], "
              "make: collections.abc.Callable[[list[int], str], tuple[typing.Any, typing.Any]]) -> typing.Any"),
      "Returns one field of a packed row of `size` positions, with each value at its begin; None unless every value is "
      "a tensor, array or list of numbers as long as its sample. convert: converts a value of any other type to a "
      "tensor or an array, or returns None. make: returns the row, of a shape and dtype, and a tensor with the one "
      "element to pad with, or None for 0. Raises InvalidArgument, naming the field, if values differ in dtype or "
      "further dimensions; TypeError for elements that no tensor can hold.");
}

}  // namespace levada::python
