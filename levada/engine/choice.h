// Which engine joins a job's ranks, and why: the same words for logs, reports and `levada doctor`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levada/engine/engine.h"

namespace levada {

/// Returns the name of the engine for ranks on these hosts: "shm" where all are on one; `between` where each is on a
/// host of its own and sends to at most `degree` others; else both, as in "shm+c10d", which forwards messages.
std::string choose_engine(const std::vector<int>& host_of, std::string_view between, int degree = default_degree);

/// Returns an engine's name and why it joins these ranks: "shm+c10d: 4 ranks on 2 hosts, 2 on each". It ends with
/// ", as asked" where choose_engine() returns another name with the engine's degree.
std::string describe_engine(const EngineInfo& info);
/// The same before ranks have joined, when only the number of ranks on this host is known: "shm: all 4 ranks are on one
/// host", "shm+c10d: 2 of 4 ranks are on this host".
std::string describe_engine(std::string_view name, int ranks, int ranks_here);

/// Writes describe_engine() to standard error on rank 0, where the environment variable LEVADA_LOG is "info".
void log_engine(const EngineInfo& info);

}  // namespace levada
