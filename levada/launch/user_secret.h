// What the ranks of a job know of each other if their launcher passes them nothing but variables, which are public.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

#include "levada/base/secret.h"

namespace levada::launch {

inline constexpr const char* secret_variable = "LEVADA_SECRET";

/// Returns a secret of this user on this host: made from the variable LEVADA_SECRET, if it is set; else the content of
/// a file in a private folder below `folder`, which the first rank creates. Processes that do not see that folder, as
/// in another container, are not ranks. Throws InvalidArgument if LEVADA_SECRET is short or the user id identifies
/// nobody; EngineError if the folder cannot be made, or others could write or read in it.
Secret user_secret(
    const std::string& folder = "/tmp",
    const std::function<const char*(const char*)>& get = [](const char* name) { return std::getenv(name); });

}  // namespace levada::launch
