// The `levada` command as a library.
#pragma once

namespace levada::cli {

/// Runs the command and gives its exit status: 0 good, 1 failed, 2 bad usage, 128+N ended by signal N. Errors go to
/// standard error as one sentence. To be called from main(), before any thread is started.
int run(int argc, const char* const* argv);

}  // namespace levada::cli
