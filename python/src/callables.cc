#include "python/src/callables.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "levada/base/text.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace levada::python {

void ReleaseWithGil::operator()(nb::object* object) const {
  if (Py_IsInitialized() == 0) {
    static_cast<void>(object->release());
    delete object;
    return;
  }
  const nb::gil_scoped_acquire gil;
  delete object;
}

SharedObject share(nb::object object) {
  return SharedObject(new nb::object(std::move(object)));
}

void rethrow(const nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) throw error;
  if (!error.matches(nb::module_::import_("levada._errors").attr("Error"))) return;
  throw_error(kind_of(nb::cast<std::string>(error.type().attr("__name__"))),
              nb::cast<std::string>(nb::str(error.value())));
}

std::string describe(const nb::python_error& error) {
  const auto name = nb::cast<std::string>(error.type().attr("__name__"));
  return printable(fmt::format("{}: {}", name, nb::cast<std::string>(nb::str(error.value()))));
}

std::string_view utf8_of(nb::handle text) {
  if (!PyUnicode_Check(text.ptr())) throw nb::cast_error();
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) throw nb::python_error();
  return {bytes, static_cast<std::size_t>(size)};
}

}  // namespace levada::python
