// Kinds of errors and the names of their Python classes.
#pragma once

#include <string_view>

#include "levada/base/error.h"

namespace levada::python {

/// A Python argument of a type that cannot work: levada.base.errors.InvalidType in Python.
class InvalidType : public InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

/// Returns the kind whose error_name() is `name`; SourceError's for any other name.
ErrorKind kind_of(std::string_view name);

}  // namespace levada::python
