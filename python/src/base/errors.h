// Errors by the names of their classes.
#pragma once

#include <string_view>

#include "levada/base/error.h"

namespace levada::python {

/// An argument from Python of a type that cannot work: levada.base.errors.InvalidType there.
class InvalidType : public InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

/// The kind of error_name() `name`; that of a SourceError for any other name.
ErrorKind kind_of(std::string_view name);

}  // namespace levada::python
