#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
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

namespace {

namespace fs = std::filesystem;

void check_writable(const OutputFile& output) {
  std::error_code error;
  const auto status = fs::status(output.path, error);
  if (fs::is_directory(status)) {
    throw InvalidArgument(fmt::format("{} {} is a directory; name a file", output.option, output.path));
  }
  // It would be replaced, not written to.
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InvalidArgument(fmt::format("{} {} is a device or a pipe; name a file", output.option, output.path));
  }
  try {
    const AtomicFile can_be_written(output.path);
  } catch (const SourceError& why) {
    throw InvalidArgument(fmt::format("{} {}: {}", output.option, output.path, why.what()));
  }
}

bool is_same(const std::string& a, const std::string& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const auto path_of = [&](const std::string& path) { return fs::weakly_canonical(fs::absolute(path, error), error); };
  return path_of(a) == path_of(b);
}

}  // namespace

void check_outputs(const std::vector<OutputFile>& outputs, const std::function<std::vector<std::string>()>& inputs) {
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    check_writable(*output);
    const auto twin =
        std::find_if(outputs.begin(), output, [&](const auto& other) { return is_same(other.path, output->path); });
    if (twin == output) continue;
    throw InvalidArgument(fmt::format("{} and {} both name {}", twin->option, output->option, output->path));
  }
  std::error_code error;
  const auto is_there = [&](const OutputFile& output) { return fs::exists(output.path, error); };
  if (std::none_of(outputs.begin(), outputs.end(), is_there)) return;
  for (const auto& input : inputs()) {
    for (const auto& output : outputs) {
      if (!fs::equivalent(input, output.path, error)) continue;
      throw InvalidArgument(fmt::format("{} {} is a file that is read; name another one", output.option, output.path));
    }
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
