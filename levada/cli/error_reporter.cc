#include "levada/cli/error_reporter.h"

#include <fmt/format.h>

#include <new>

#include "levada/launch/launch.h"

namespace levada::cli {
namespace {

/// Returns this process's rank, or 0 outside a job. Also returns 0 if the environment is contradictory, which is
/// reported on first use.
int own_rank() {
  try {
    const auto job = launch::detect();
    return job ? job->rank : 0;
  } catch (const InvalidArgument&) {
    return 0;
  }
}

}  // namespace

bool in_job() {
  try {
    return launch::detect().has_value();
  } catch (const InvalidArgument&) {
    return true;
  }
}

void report_error(ErrorKind kind, std::string_view message, int lost) {
  if (launch::report_failure(kind, message)) return;
  if (own_rank() == (lost == 0 ? 1 : 0)) print_error(message);
}

void report_failed_start(ErrorKind kind, const std::string& message) {
  if (launch::report_failure(kind, message)) return;
  const int rank = own_rank();
  const auto whose = rank == 0 ? message : fmt::format("rank {}: {}", rank, message);
  if (rank == 0) print_error(whose);
  if (!launch::refuse_start(kind, whose) && rank != 0) print_error(whose);
}

int status_of(const std::function<int()>& action,
              const std::function<void(ErrorKind, const std::string&, int)>& report) {
  try {
    return action();
  } catch (const PeerLost& error) {
    report(error.kind(), error.what(), error.rank());
  } catch (const Error& error) {
    report(error.kind(), error.what(), -1);
    if (error.kind() == ErrorKind::invalid_argument) return bad_usage;
  } catch (const std::bad_alloc&) {
    report(ErrorKind::engine, "out of memory; levada doctor shows the limits", -1);
  } catch (const std::exception& error) {
    report(ErrorKind::engine, error.what(), -1);
  }
  return failed;
}

int run_as_rank(const std::string& engine, Duration timeout,
                const std::function<int(const std::shared_ptr<Engine>&)>& body) {
  const auto to_user = [](const std::string& sentence) { print_error(sentence); };
  const launch::JoinOptions options{.engine = engine, .timeout = timeout, .remind = to_user, .report = to_user};
  return status_of([&] { return body(launch::join(options)); }, report_error);
}

}  // namespace levada::cli
