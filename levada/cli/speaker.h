// Which of a job's ranks tells the user of a failure.
#pragma once

#include <string_view>

#include "levada/base/error.h"

namespace levada::cli {

/// Whether this process is a rank of a job that some launcher started.
bool in_job();
/// Whether an error that all ranks see alike is this one's to tell: rank 0's, or that of a process that is no rank.
bool is_speaker();

/// Tells of a failure, so that the user gets one sentence: to run_local(), which speaks for all its ranks; else to
/// standard error, from rank 0, or from rank 1 where `lost` is rank 0.
void tell_failure(ErrorKind kind, std::string_view message, int lost = -1);

}  // namespace levada::cli
