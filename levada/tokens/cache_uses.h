// Lists of the token-cache entries that processes have in use, one file per list. Internal to this module.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "levada/base/private_files.h"

namespace levada {

/// The prefix of a list's file name, and the part that mkostemp(3) replaces.
inline constexpr std::string_view uses_prefix = "in-use-", uses_pattern = "XXXXXX";

/// Returns an entry's line in a list.
std::string line_of(const std::string& prefix);

/// Removes a list of entries in use unless it is locked, which means that the last process that had it open has ended.
bool remove_list_if_ended(const std::string& path, const FolderTrust& trust);

/// Returns the names of the entries that any process has in use, and removes the lists of processes that have ended.
/// Throws SourceError for a list that cannot be read, since any entry may be on it.
std::set<std::string> entries_in_use(const std::string& dir, const FolderTrust& trust);

}  // namespace levada
