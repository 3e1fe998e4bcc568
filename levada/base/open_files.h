// The limit on this process's open files.
#pragma once

#include <cstddef>
#include <string_view>

namespace levada {

/// Raises this process's soft limit, if necessary, so that `count` more files can be opened, and another thousand by
/// the program. If the hard limit is too low for `count`, throws InvalidArgument that states the number needed. `who`
/// names this process, such as "rank 3".
void reserve_open_files(std::size_t count, std::string_view who);

}  // namespace levada
