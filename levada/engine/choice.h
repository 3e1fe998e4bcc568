// Chooses the engine for a job's ranks and explains the choice, in the same words in logs, reports and `levada doctor`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levada/engine/engine.h"

namespace levada {

/// Returns the name of the engine for ranks on these hosts: "shm" if all are on one host; `between` if each is on a
/// different host and sends to at most `degree` others; otherwise both, such as "shm+c10d", which forwards messages.
std::string choose_engine(const std::vector<int>& host_of, std::string_view between, int degree = default_degree);

/// Returns an engine's name and why it was chosen: "shm+c10d: 4 ranks on 2 hosts, 2 on each". The text ends with ", as
/// asked" if choose_engine() would have chosen another one.
std::string describe_engine(const EngineInfo& info);
/// The same before ranks have joined, when only the number of ranks on this host is known: "shm: all 4 ranks are on one
/// host", "shm+c10d: 2 of 4 ranks are on this host".
std::string describe_engine(std::string_view name, int ranks, int ranks_here);

/// Writes describe_engine() to standard error on rank 0 if the environment variable LEVADA_LOG is "info", and names
/// any other value.
void log_engine(const EngineInfo& info);

}  // namespace levada
