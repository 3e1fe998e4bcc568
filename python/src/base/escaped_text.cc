#include "python/src/base/escaped_text.h"

namespace nb = nanobind;

namespace levada::python {

std::string escaped(nb::handle text) {
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) return {utf8, static_cast<std::size_t>(size)};
  PyErr_Clear();
  const auto bytes = nb::steal<nb::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) throw nb::python_error();
  return {bytes.c_str(), bytes.size()};
}

std::string escaped_str(nb::handle value) {
  const auto text = nb::steal(PyObject_Str(value.ptr()));
  if (text.is_valid()) return escaped(text);
  PyErr_Clear();
  return "<exception str() failed>";
}

}  // namespace levada::python
