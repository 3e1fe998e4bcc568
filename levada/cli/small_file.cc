#include "levada/cli/small_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "levada/base/error.h"

namespace levada::cli {

void refuse_file(std::string_view what, const std::string& path, std::string_view why) {
  throw InvalidArgument(fmt::format("the {} file {} cannot be used: {}", what, path, why));
}

std::string read_small_file(std::string_view what, const std::string& path, std::int64_t most_mib) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) refuse_file(what, path, std::strerror(errno));
  if (!S_ISREG(found.st_mode)) refuse_file(what, path, "it is no file");
  if (found.st_size > most_mib << 20) refuse_file(what, path, fmt::format("it is larger than {} MiB", most_mib));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) refuse_file(what, path, "it cannot be read, or it is empty");
  return text.str();
}

}  // namespace levada::cli
