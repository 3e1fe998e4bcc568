// The `levada` command as a library.
#pragma once

#include <string>
#include <vector>

namespace levada::cli {

/// Runs the command and gives its exit status: 0 good, 1 failed, 2 bad usage, 128+N ended by signal N. Errors go to
/// standard error as one sentence. To be called from main(), before any thread is started. `self`: the program, with
/// its first arguments, that is this command, for the ranks that it starts; empty: this process's program.
int run(int argc, const char* const* argv, const std::vector<std::string>& self = {});

}  // namespace levada::cli
