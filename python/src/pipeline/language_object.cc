#include "python/src/pipeline/language_object.h"

#include <cstdint>
#include <variant>

#include "python/src/batch/rebuild.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

void retain(void* object) noexcept {
  const auto gil = PyGILState_Ensure();
  Py_INCREF(static_cast<PyObject*>(object));
  PyGILState_Release(gil);
}

void release(void* object) noexcept {
  if (Py_IsInitialized() == 0) return;
  const auto gil = PyGILState_Ensure();
  Py_DECREF(static_cast<PyObject*>(object));
  PyGILState_Release(gil);
}

constexpr pipeline::LanguageObject::Language python{.retain = retain, .release = release};

}  // namespace

pipeline::Item item_of(nb::object object) {
  // Stores numbers as values: each of a million objects in a shuffle would be at a different address.
  if (PyLong_CheckExact(object.ptr())) {
    int overflow = 0;
    const std::int64_t value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    if (overflow == 0) return Tree(value);
  } else if (PyFloat_CheckExact(object.ptr())) {
    return Tree(PyFloat_AsDouble(object.ptr()));
  }
  return pipeline::LanguageObject(object.release().ptr(), python);
}

nb::object object_of(pipeline::Item item) {
  if (auto* foreign = std::get_if<pipeline::LanguageObject>(&item)) {
    return nb::steal(static_cast<PyObject*>(std::move(*foreign).detach()));
  }
  return object_of_const(item);
}

nb::object object_of_const(const pipeline::Item& item) {
  if (const auto* foreign = std::get_if<pipeline::LanguageObject>(&item)) {
    return nb::borrow(static_cast<PyObject*>(foreign->object()));
  }
  const Tree& tree = std::get<Tree>(item);
  if (tree.is_leaf()) {
    if (const auto* number = std::get_if<std::int64_t>(&tree.leaf())) return nb::int_(*number);
    if (const auto* number = std::get_if<double>(&tree.leaf())) return nb::float_(*number);
  }
  return Rebuilder(Allowed::registered).rebuild(tree);
}

Shared::Shared(nb::object object) : held_(object.release().ptr(), [](PyObject* last) { release(last); }) {}

}  // namespace levada::python
