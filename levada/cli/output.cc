#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "levada/base/atomic_file.h"
#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/cli/command.h"

namespace levada::cli {

void print(std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EPIPE) {
      throw OutputClosed{};
    } else if (errno != EINTR) {
      throw EngineError(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
    }
  }
}

void check_writable(std::string_view option, const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    throw InvalidArgument(fmt::format("{} {} is a directory; name a file", option, path));
  }
  try {
    const AtomicFile can_be_written(path);
  } catch (const SourceError& error) {
    throw InvalidArgument(fmt::format("{} {}: {}", option, path, error.what()));
  }
}

report::Style output_style() {
  return report::Style::of_descriptor(STDOUT_FILENO, [](const char* name) -> const char* { return std::getenv(name); });
}

void print_error(std::string_view message) {
  // Over a line of progress that a rank which is gone may have left.
  const auto line =
      fmt::format("{}levada: {}\n", ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "", printable_lines(message));
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace levada::cli
