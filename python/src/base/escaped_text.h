// Python texts that may have no UTF-8 encoding, such as that of an exception that quotes a file name.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace levada::python {

/// Returns a str in UTF-8, with lone surrogates escaped: "caf\\udce9". With the GIL.
std::string escaped(nanobind::handle text);
/// Returns str(value), escaped; "<exception str() failed>" if that raises anything. With the GIL.
std::string escaped_str(nanobind::handle value);

/// A parameter that takes the text of an exception: any str, escaped. std::string would reject a str without UTF-8
/// encoding.
struct EscapedText {
  std::string utf8;
};

}  // namespace levada::python

namespace nanobind::detail {

template <>
struct type_caster<levada::python::EscapedText> {
  NB_TYPE_CASTER(levada::python::EscapedText, const_name("str"))

  bool from_python(handle text, uint8_t, cleanup_list*) noexcept {
    if (!PyUnicode_Check(text.ptr())) return false;
    try {
      value.utf8 = levada::python::escaped(text);
      return true;
    } catch (...) {
      return false;  // no memory
    }
  }
};

}  // namespace nanobind::detail
