// Files with URLs that Python packages read.
#pragma once

#include <nanobind/nanobind.h>

#include "levada/sources/remote_files.h"

namespace levada::python {

/// `given`: a levada._levada.RemoteFiles. With the GIL.
RemoteFiles remote_files_of(nanobind::handle given);

}  // namespace levada::python
