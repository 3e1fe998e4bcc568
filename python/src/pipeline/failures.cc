#include "python/src/pipeline/failures.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "python/src/base/bytes.h"
#include "python/src/base/errors.h"
#include "python/src/base/escaped_text.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

nb::object failures() {
  return nb::module_::import_("levada.pipeline.failures");
}

/// Returns the exception object, which an error may lack before Python 3.12.
nb::object exception_of(const nb::python_error& raised) {
  PyObject* type = raised.type().inc_ref().ptr();
  PyObject* value = raised.value().is_valid() ? raised.value().inc_ref().ptr() : nullptr;
  PyObject* traceback = raised.traceback().is_valid() ? raised.traceback().inc_ref().ptr() : nullptr;
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return nb::steal(value);
}

/// Sets the Python exception for a failure: the original one, if it can be recreated, caused by a levada.StageFailed
/// that describes it; otherwise that StageFailed.
void set_raised(const pipeline::StageFailed& failed) {
  const auto& failure = failed.failure();
  const auto made =
      failures().attr("unpack")(failed.what(), failure.stage, failure.process, failure.item, failure.traceback,
                                to_bytes(failure.exception), std::string(failed.name()));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

}  // namespace

void throw_failed(const nb::python_error& raised) {
  using Packed = std::tuple<std::string, EscapedText, EscapedText, nb::bytes, EscapedText, EscapedText, std::int64_t>;
  const auto [kind, message, traceback, packed, stage, process, item] =
      nb::cast<Packed>(failures().attr("pack")(exception_of(raised)));
  const auto bytes = view_of(packed);
  throw pipeline::StageFailed({.stage = stage.utf8,
                               .process = process.utf8,
                               .item = item,
                               .kind = kind_of(kind),
                               .message = message.utf8,
                               .traceback = traceback.utf8,
                               .exception = Bytes(bytes.begin(), bytes.end()),
                               .ends_program = !raised.matches(PyExc_Exception)});
}

void bind_failures(nb::module_&) {
  // Registered after the translator of levada::Error, StageFailed's base, because translators are tried in reverse
  // order.
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const pipeline::StageFailed& failed) {
      set_raised(failed);
    }
  });
}

}  // namespace levada::python
