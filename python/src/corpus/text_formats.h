// Formats of text that Python packages read.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "levada/tokens/text_reader.h"

namespace levada::python {

/// `given`: a sequence of levada._levada.TextFormat. With the GIL.
std::vector<TextFormat> formats_of(nanobind::handle given);

}  // namespace levada::python
