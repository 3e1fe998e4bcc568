// Tokenizers that Python packages provide.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "levada/tokens/tokenizer.h"

namespace levada::python {

/// Returns the tokenizer in `given`, a levada._levada.Tokenizer. With the GIL.
std::shared_ptr<const Tokenizer> tokenizer_of(nanobind::handle given);

}  // namespace levada::python
