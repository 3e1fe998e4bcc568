// How many files this process may have open.
#pragma once

#include <cstddef>
#include <string_view>

namespace levada {

/// Raises the soft limit of this process, if necessary, so that it can open `count` more files and the program a
/// thousand beside them. Throws InvalidArgument, with the number that is needed, if the hard limit is too low for
/// `count`. `who` names this process: "rank 3".
void reserve_open_files(std::size_t count, std::string_view who);

}  // namespace levada
