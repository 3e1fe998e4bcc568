// Faults of storage that may pass, tried again.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/sources/file.h"
#include "levada/sources/io_options.h"

namespace levada {

/// Whether a fault of this errno may have gone when the same is tried again: those of devices and networks, not those
/// of names and permissions.
bool may_pass(int error);

/// Opens a file and reads it, each again after a fault that may pass, as `options` say; then throws SourceError, which
/// says how often that was tried.
std::unique_ptr<File> open_patiently(const std::string& path, const IoOptions& options,
                                     const std::function<std::unique_ptr<File>(const std::string&)>& open);

/// What `list` returns for `name`, tried again in the same way.
std::vector<std::string> list_patiently(const std::string& name, const IoOptions& options,
                                        const std::function<std::vector<std::string>(const std::string&)>& list);

}  // namespace levada
