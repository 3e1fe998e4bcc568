// The limit on this process's open files.
#pragma once

#include <cstddef>
#include <string_view>

namespace levada {

/// Raises this process's soft limit, if necessary, so that it can open `count` more files and the program a thousand in
/// addition. Throws InvalidArgument that states the number needed if the hard limit is too low for `count`. `who` names
/// this process: "rank 3".
void reserve_open_files(std::size_t count, std::string_view who);

}  // namespace levada
