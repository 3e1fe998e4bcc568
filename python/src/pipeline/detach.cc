#include "python/src/pipeline/detach.h"

#include <algorithm>
#include <vector>

namespace nb = nanobind;

namespace levada::python {
namespace {

class Detacher {
 public:
  explicit Detacher(const TensorLibraries& libraries) : libraries_(libraries) {}

  /// Returns `given` if its producer cannot change it, otherwise a copy; an invalid object if there is no copy. `given`
  /// is a reference in addition to the container's. `is_ours`: whether only the item refers to the container.
  nb::object copy_of(const nb::object& given, bool is_ours, int depth = 0) {
    PyObject* const object = given.ptr();
    if (is_constant(object)) return given;
    if (depth == max_depth || seen_.size() == max_objects) return {};
    if (std::ranges::find(seen_, object) != seen_.end()) return {};
    seen_.push_back(object);
    is_ours = is_ours && Py_REFCNT(object) == 2;
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) return sequence_of(object, is_ours, depth + 1);
    if (PyDict_CheckExact(object)) return dict_of(object, is_ours, depth + 1);
    return libraries_.detached(object, is_ours);
  }

 private:
  nb::object sequence_of(PyObject* object, bool is_ours, int depth) {
    const bool is_list = PyList_Check(object) != 0;
    const auto size = PySequence_Size(object);
    auto copy = nb::steal(is_list ? PyList_New(size) : PyTuple_New(size));
    if (!copy.is_valid()) throw nb::python_error();
    bool is_same = is_ours || !is_list;
    for (Py_ssize_t at = 0; at < size; ++at) {
      // While a tensor is copied, another thread may change the list.
      const auto child = nb::borrow(is_list ? PyList_GetItem(object, at) : PyTuple_GetItem(object, at));
      if (!child.is_valid()) throw nb::python_error();
      auto made = copy_of(child, is_ours, depth);
      if (!made.is_valid()) return {};
      is_same = is_same && made.is(child);
      const int failed = is_list ? PyList_SetItem(copy.ptr(), at, made.release().ptr())
                                 : PyTuple_SetItem(copy.ptr(), at, made.release().ptr());
      if (failed != 0) throw nb::python_error();
    }
    return is_same ? nb::borrow(object) : copy;
  }
  nb::object dict_of(PyObject* object, bool is_ours, int depth) {
    nb::dict copy;
    PyObject *key = nullptr, *value = nullptr;
    bool is_same = is_ours;
    for (Py_ssize_t i = 0; PyDict_Next(object, &i, &key, &value) != 0;) {
      if (!is_constant(key)) return {};
      const auto name = nb::borrow(key), child = nb::borrow(value);
      auto made = copy_of(child, is_ours, depth);
      if (!made.is_valid()) return {};
      is_same = is_same && made.is(child);
      copy[name] = made;
    }
    return is_same ? nb::borrow(object) : nb::object(copy);
  }

  static constexpr int max_depth = 50;
  static constexpr std::size_t max_objects = 64;

  const TensorLibraries& libraries_;
  std::vector<PyObject*> seen_;
};

}  // namespace

bool is_constant(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
         PyUnicode_CheckExact(object) || PyBytes_CheckExact(object) || PyType_Check(object);
}

nb::object detached(PyObject* object, TensorLibraries& libraries) {
  const auto given = nb::borrow(object);
  auto copy = Detacher(libraries).copy_of(given, true);
  if (copy.is_valid()) return copy;
  libraries.refresh();
  return Detacher(libraries).copy_of(given, true);
}

}  // namespace levada::python
