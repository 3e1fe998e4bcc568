// Retries after transient storage faults.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/sources/file.h"
#include "levada/sources/io_options.h"

namespace levada {

/// Returns whether an errno is transient, so that a retry may succeed: errors of devices and networks, not of names and
/// permissions.
bool may_pass(int error);

/// Opens a file. Retries this, and later the file's reads, after transient faults, as `options` specify. Throws
/// SourceError, stating the number of tries, once they are used up.
std::unique_ptr<File> open_patiently(const std::string& path, const IoOptions& options,
                                     const std::function<std::unique_ptr<File>(const std::string&)>& open);

/// Returns list(name), retried in the same way.
std::vector<std::string> list_patiently(const std::string& name, const IoOptions& options,
                                        const std::function<std::vector<std::string>(const std::string&)>& list);

}  // namespace levada
