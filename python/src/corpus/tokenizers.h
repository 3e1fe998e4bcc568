// Tokenizers that Python packages bring.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "levada/tokens/tokenizer.h"

namespace levada::python {

/// `given`: an object of levada._levada.Tokenizer. With the GIL.
std::shared_ptr<const Tokenizer> tokenizer_of(nanobind::handle given);

}  // namespace levada::python
