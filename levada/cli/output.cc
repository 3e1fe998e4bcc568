#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <unordered_map>

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
  // Publishing the output would replace it instead of writing to it.
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InvalidArgument(fmt::format("{} {} is a device or a pipe; name a file", output.option, output.path));
  }
  try {
    const AtomicFile can_be_written(output.path);
  } catch (const SourceError& why) {
    throw InvalidArgument(fmt::format("{} {}: {}", output.option, output.path, why.what()));
  }
}

/// Returns a string that is the same for all names of one file, whether it exists or not.
std::string identity_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return fmt::format("{}:{}", status.st_dev, status.st_ino);
  std::error_code error;
  return fs::weakly_canonical(fs::absolute(path, error), error).string();
}

}  // namespace

void check_outputs(const std::vector<OutputFile>& outputs, const std::function<std::vector<std::string>()>& inputs) {
  std::unordered_map<std::string, const OutputFile*> by_identity;
  bool is_one_there = false;
  for (const auto& output : outputs) {
    check_writable(output);
    const auto [twin, is_new] = by_identity.emplace(identity_of(output.path), &output);
    if (!is_new) {
      throw InvalidArgument(fmt::format("{} and {} both name {}", twin->second->option, output.option, output.path));
    }
    std::error_code error;
    is_one_there = is_one_there || fs::exists(output.path, error);
  }
  if (!is_one_there) return;
  for (const auto& input : inputs()) {
    const auto found = by_identity.find(identity_of(input));
    if (found == by_identity.end() || found->second->may_replace == input) continue;
    throw InvalidArgument(
        fmt::format("{} {} is a file that is read; name another one", found->second->option, found->second->path));
  }
}

report::Style output_style() {
  return report::Style::of_descriptor(STDOUT_FILENO, [](const char* name) -> const char* { return std::getenv(name); });
}

void print_error(std::string_view message) {
  // Overwrites a progress line that an ended rank may have left.
  const auto line =
      fmt::format("{}levada: {}\n", ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "", printable_lines(message));
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace levada::cli
