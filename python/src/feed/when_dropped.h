// Notices that a loop has dropped its iterator.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace levada::python {

/// Calls a function when the last reference to this object is dropped, with the exception in flight at that moment, for
/// example when an exception leaves a `for` loop, which holds the only reference to its iterator. A `__del__` cannot
/// see that exception.
class WhenDropped {
 public:
  explicit WhenDropped(nanobind::object call) : call_(std::move(call)) {}
  WhenDropped(const WhenDropped&) = delete;
  WhenDropped& operator=(const WhenDropped&) = delete;
  ~WhenDropped() {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    if (type != nullptr) PyErr_NormalizeException(&type, &value, &trace);
    if (trace != nullptr) PyException_SetTraceback(value, trace);
    try {
      call_(value == nullptr ? nanobind::handle(Py_None) : nanobind::handle(value));
    } catch (nanobind::python_error& error) {
      if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // raised again at the next opportunity
      else error.discard_as_unraisable("levada: leaving a feed");
    }
    call_.reset();
    PyErr_Restore(type, value, trace);
  }

 private:
  nanobind::object call_;
};

}  // namespace levada::python
