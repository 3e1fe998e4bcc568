#include "levada/cli/speaker.h"

#include <cstdlib>

#include "levada/cli/command.h"
#include "levada/launch/launch.h"

namespace levada::cli {
namespace {

/// This process's rank; 0 outside a job and where the environment contradicts itself, which is told where it is used.
int own_rank() {
  try {
    const auto job = launch::detect([](const char* name) -> const char* { return std::getenv(name); });
    return job ? job->rank : 0;
  } catch (const InvalidArgument&) {
    return 0;
  }
}

}  // namespace

bool in_job() {
  try {
    return launch::detect([](const char* name) -> const char* { return std::getenv(name); }).has_value();
  } catch (const InvalidArgument&) {
    return true;
  }
}

bool is_speaker() {
  return own_rank() == 0;
}

void tell_failure(ErrorKind kind, std::string_view message, int lost) {
  if (launch::report_failure(kind, message)) return;
  if (own_rank() == (lost == 0 ? 1 : 0)) complain(message);
}

}  // namespace levada::cli
