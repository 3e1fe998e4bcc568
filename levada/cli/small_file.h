// Files that are read in one piece.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace levada::cli {

/// Returns the content of a file. Throws InvalidArgument, which names the file by `what` ("layout") and path, if it
/// cannot be read, is empty or is larger than `max_mib`.
std::string read_small_file(std::string_view what, const std::string& path, std::int64_t max_mib = 1);
/// Throws InvalidArgument that names the file and the error in its content.
[[noreturn]] void throw_unusable_file(std::string_view what, const std::string& path, std::string_view why);

}  // namespace levada::cli
