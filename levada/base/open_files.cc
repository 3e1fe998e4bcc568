#include "levada/base/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "levada/base/error.h"

namespace levada {
namespace {

constexpr rlim_t for_the_program = 1024;

/// Returns the number of open files; the soft limit if not even /proc can be opened.
rlim_t num_open(rlim_t soft_limit) {
  std::error_code error;
  rlim_t count = 0;
  for (std::filesystem::directory_iterator file("/proc/self/fd", error), end; !error && file != end;
       file.increment(error)) {
    ++count;
  }
  return error == std::errc::too_many_files_open ? soft_limit : count;
}

}  // namespace

void reserve_open_files(std::size_t count, std::string_view who) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = num_open(limit.rlim_cur) + count;
  if (limit.rlim_max < needed) {
    constexpr rlim_t step = 100;
    throw InvalidArgument(
        fmt::format("{} needs {} open files to connect the ranks, but may have {} (RLIMIT_NOFILE); raise the number of "
                    "open files, for example with `ulimit -n {}`, before the job starts",
                    who, needed, limit.rlim_max, (needed + for_the_program + step - 1) / step * step));
  }
  const rlim_t wanted = std::min(limit.rlim_max, needed + for_the_program);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace levada
