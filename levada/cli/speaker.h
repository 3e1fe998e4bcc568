// Which of a job's ranks tells the user of a failure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/engine/engine.h"

namespace levada::cli {

/// Writes "levada: <message>" to standard error.
void complain(std::string_view message);

/// Whether this process is a rank of a job that some launcher started.
bool in_job();

/// Tells of a failure, so that the user gets one sentence: to run_local(), which speaks for all its ranks; else to
/// standard error, from rank 0, or from rank 1 where `lost` is rank 0.
void tell_failure(ErrorKind kind, std::string_view message, int lost = -1);
/// The same for a rank that has not begun to join its job: the ranks that wait for it hear of the failure and end.
void tell_failed_start(ErrorKind kind, const std::string& message);

/// What `action` returns; the status for a failure where it throws, once `tell` has been given it: the kind, the
/// message and the rank that is lost, or -1.
int status_of(const std::function<int()>& action, const std::function<void(ErrorKind, const std::string&, int)>& tell);

/// What `body` returns as a rank of the job that this process was launched in; the status for a failure, of which it
/// tells.
int run_as_rank(const std::string& engine, Duration timeout,
                const std::function<int(const std::shared_ptr<Engine>&)>& body);

}  // namespace levada::cli
