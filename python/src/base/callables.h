// Objects of Python that threads of C++ call and release.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace levada::python {

/// A call into Python by a thread that may outlive it: holds the GIL, where the interpreter still runs. A thread that
/// asks for the GIL later is ended in the middle, and the process with it.
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

/// Has the interpreter, when it ends, wait for the calls under way; none can begin then. To be called once.
void finish_calls_at_exit();

/// Deletes what holds objects of Python, on any thread. Once the interpreter has ended, leaves it as it is.
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
/// May be moved and destroyed without the GIL, and after the interpreter: then the object is left as it is.
using SharedObject = std::unique_ptr<nanobind::object, ReleaseWithGil>;
SharedObject share(nanobind::object object);

/// Throws a levada.Error as that of C++, and what is no Exception, such as KeyboardInterrupt, as it is. Returns for any
/// other. With the GIL.
void rethrow(const nanobind::python_error& error);
/// "KeyError: 'text'", on one line. With the GIL.
std::string describe(const nanobind::python_error& error);

/// The text of a str, valid as long as it is. Throws python_error for halves of surrogate pairs, cast_error for what is
/// no str. With the GIL.
std::string_view utf8_of(nanobind::handle text);

}  // namespace levada::python
