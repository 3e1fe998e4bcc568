// Reports errors on standard error, in one sentence for a whole job.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/engine/engine.h"

namespace levada::cli {

// Exit statuses.
inline constexpr int failed = 1;
inline constexpr int bad_usage = 2;

/// Writes "levada: <message>" to standard error.
void print_error(std::string_view message);

/// Returns whether this process is a rank of a launched job.
bool in_job();

/// Reports an error as a single sentence. Under run_local(), sends it to the parent, which prints it
/// for all its ranks. Otherwise rank 0 prints it on standard error, or rank 1 if `lost` is rank 0.
void report_error(ErrorKind kind, std::string_view message, int lost = -1);
/// Reports the error of a rank that has not yet joined its job: the ranks that wait for it receive the error and exit.
void report_failed_start(ErrorKind kind, const std::string& message);

/// Returns the result of `action`. If it throws, calls `report` with the kind, the message and the lost rank (or -1),
/// and returns the exit status for that error.
int status_of(const std::function<int()>& action,
              const std::function<void(ErrorKind, const std::string&, int)>& report);

/// Joins the job that launched this process and returns the result of `body`. Reports an error and returns its exit
/// status.
int run_as_rank(const std::string& engine, Duration timeout,
                const std::function<int(const std::shared_ptr<Engine>&)>& body);

}  // namespace levada::cli
