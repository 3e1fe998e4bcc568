// Raises levada::Error as the exceptions of levada/base/errors.py.
#include "python/src/base/errors.h"

#include <nanobind/stl/string.h>

#include <typeinfo>

#include "levada/base/threads.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

nb::object class_of(std::string_view name) {
  return nb::module_::import_("levada.base.errors").attr(std::string(name).c_str());
}

void raise(const Error& error) {
  const auto type = class_of(dynamic_cast<const InvalidType*>(&error) != nullptr ? "InvalidType" : error.name());
  // A name in the message may not be UTF-8, so its bytes are escaped.
  const std::string_view what = error.what();
  nb::object exception =
      type(nb::steal(PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "backslashreplace")));
  if (const auto* lost = dynamic_cast<const PeerLost*>(&error)) exception.attr("rank") = lost->rank();
  PyErr_SetObject(type.ptr(), exception.ptr());
}

}  // namespace

ErrorKind kind_of(std::string_view name) {
  if (name == "InvalidType") return ErrorKind::invalid_argument;
  for (auto number = static_cast<int>(ErrorKind::invalid_argument); number <= static_cast<int>(ErrorKind::engine);
       ++number) {
    if (error_name(static_cast<ErrorKind>(number)) == name) return static_cast<ErrorKind>(number);
  }
  return ErrorKind::source;
}

void bind_errors(nb::module_& module) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise(error);
    } catch (const std::bad_cast&) {
      PyErr_SetString(PyExc_TypeError, "an argument, or an element of one, is of another type than the signature says");
    }
  });
  module.def(
      "throw_no_thread",
      [](const std::string& what) {
        throw_no_thread(what, std::make_error_code(std::errc::resource_unavailable_try_again));
      },
      nb::arg("what"), nb::sig("def throw_no_thread(what: str) -> typing.NoReturn"),
      "Raises EngineError: the system refused a thread for `what`.");
}

}  // namespace levada::python
