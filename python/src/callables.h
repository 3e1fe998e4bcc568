// Objects of Python that threads of C++ call and release.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <string_view>

namespace levada::python {

struct ReleaseWithGil {
  void operator()(nanobind::object* object) const;
};
/// May be moved and destroyed without the GIL.
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
