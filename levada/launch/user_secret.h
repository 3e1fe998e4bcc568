// Provides a secret by which the ranks of a job recognize each other if their launcher passes only environment
// variables, which are public.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

#include "levada/base/secret.h"

namespace levada::launch {

inline constexpr const char* secret_variable = "LEVADA_SECRET";

/// Returns this user's secret on this host. If LEVADA_SECRET is set, the secret is derived from it. Otherwise, it is
/// the content of a file in a private folder below `folder`, which the first rank creates. Processes that cannot see
/// that folder, for example in another container, are not ranks. Throws InvalidArgument if LEVADA_SECRET is too short
/// or the user id identifies no user; EngineError if the folder cannot be created, or if others could write or read in
/// it.
Secret user_secret(
    const std::string& folder = "/tmp",
    const std::function<const char*(const char*)>& get = [](const char* name) { return std::getenv(name); });

}  // namespace levada::launch
