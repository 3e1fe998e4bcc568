// Files that users write by hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace levada::cli {

/// All of a file. Throws InvalidArgument that names it by `what` ("layout") and path: where it cannot be read, is empty
/// or is larger than `most_mib`.
std::string read_small_file(std::string_view what, const std::string& path, std::int64_t most_mib = 1);
/// Refuses one for what is in it.
[[noreturn]] void refuse_file(std::string_view what, const std::string& path, std::string_view why);

}  // namespace levada::cli
