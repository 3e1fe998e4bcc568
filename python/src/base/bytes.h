// Conversions between Python's bytes and Levada's.
#pragma once

#include <nanobind/nanobind.h>

#include "levada/base/bytes.h"

namespace levada::python {

/// Returns a view that is valid as long as `bytes`.
inline ByteView view_of(const nanobind::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

inline nanobind::bytes to_bytes(const Bytes& bytes) {
  return nanobind::bytes(bytes.data(), bytes.size());
}

}  // namespace levada::python
