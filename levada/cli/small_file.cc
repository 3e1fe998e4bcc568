#include "levada/cli/small_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "levada/base/error.h"

namespace levada::cli {

void throw_unusable_file(std::string_view what, const std::string& path, std::string_view why) {
  throw InvalidArgument(fmt::format("the {} file {} cannot be used: {}", what, path, why));
}

std::string read_small_file(std::string_view what, const std::string& path, std::int64_t max_mib) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) throw_unusable_file(what, path, std::strerror(errno));
  if (!S_ISREG(found.st_mode)) throw_unusable_file(what, path, "it is not a regular file");
  if (found.st_size == 0) throw_unusable_file(what, path, "it is empty");
  if (found.st_size > max_mib << 20) throw_unusable_file(what, path, fmt::format("it is larger than {} MiB", max_mib));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw_unusable_file(what, path, "it cannot be read");
  return text.str();
}

}  // namespace levada::cli
