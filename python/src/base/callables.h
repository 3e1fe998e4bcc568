// Python objects that C++ threads call and release.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace levada::python {

/// A call into Python from a thread that may outlive the interpreter. Holds the GIL if the interpreter is still
/// running. Without this class, a thread that acquired the GIL after the interpreter has ended would be terminated, and
/// the process with it.
class PythonCall {
 public:
  PythonCall();
  ~PythonCall();
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;
  explicit operator bool() const { return gil_.has_value(); }

 private:
  std::optional<nanobind::gil_scoped_acquire> gil_;
};

/// Makes the interpreter wait at exit for the calls in progress; no call can begin afterwards. Must be called once.
void finish_calls_at_exit();

/// Deletes objects that hold Python objects, on any thread. Leaks them once the interpreter has ended.
struct DeleteWithGil {
  template <typename T>
  void operator()(T* last) const {
    if (Py_IsInitialized() == 0) return;
    const nanobind::gil_scoped_acquire gil;
    delete last;
  }
};

struct ReleaseWithGil {
  void operator()(nanobind::object* object) const;
};
/// May be moved and destroyed without the GIL. Leaks the object once the interpreter has ended.
using SharedObject = std::unique_ptr<nanobind::object, ReleaseWithGil>;
SharedObject share(nanobind::object object);

/// Throws a levada.Error as the C++ error of its kind. Throws anything that is not an Exception, such as
/// KeyboardInterrupt, unchanged. Returns for any other error. With the GIL.
void rethrow(const nanobind::python_error& error);
/// Returns for example "KeyError: 'text'", on one line. With the GIL.
std::string describe(const nanobind::python_error& error);

/// Returns the text of a str, valid as long as the str. Throws python_error for lone surrogates, cast_error if `text`
/// is not a str. With the GIL.
std::string_view utf8_of(nanobind::handle text);

}  // namespace levada::python
