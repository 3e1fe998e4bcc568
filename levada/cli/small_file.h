// Files that are read as a whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace levada::cli {

/// Returns all of a file. Throws InvalidArgument, which names it by `what` ("layout") and path, if it cannot be read,
/// is empty or is larger than `max_mib`.
std::string read_small_file(std::string_view what, const std::string& path, std::int64_t max_mib = 1);
/// Refuses one for what is in it.
[[noreturn]] void refuse_file(std::string_view what, const std::string& path, std::string_view why);

}  // namespace levada::cli
