// Provides a secret by which the ranks of a job recognize each other if their launcher passes only environment
// variables, which are public.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

#include "levada/base/secret.h"

namespace levada::launch {

inline constexpr const char* secret_variable = "LEVADA_SECRET";

/// Returns this user's home folder, from the system's table of users because HOME may differ between ranks; empty if
/// there is none.
std::string home_folder();

/// Returns this user's secret on this host. If LEVADA_SECRET is set, the secret is derived from it. Otherwise, it is
/// the content of a file in a private folder, which the first rank creates: `folder`/levada-UID, or, if another user
/// has taken that name, `home`/.cache/levada/secret. Processes that cannot see the folder, for example in another
/// container, are not ranks. Throws InvalidArgument if LEVADA_SECRET is too short or the user id identifies no user;
/// EngineError if the folder cannot be created, or if others could write or read in it.
Secret user_secret(
    const std::string& folder = "/tmp", const std::string& home = home_folder(),
    const std::function<const char*(const char*)>& get = [](const char* name) { return std::getenv(name); });

}  // namespace levada::launch
