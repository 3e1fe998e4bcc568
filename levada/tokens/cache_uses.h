// Lists of the entries of a token cache that processes have in use, a file each. For this module's sources alone.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "levada/base/private_files.h"

namespace levada {

/// The name of a list, and what mkostemp(3) replaces in it.
inline constexpr std::string_view uses_prefix = "in-use-", uses_pattern = "XXXXXX";

/// Returns the line of an entry in a list.
std::string line_of(const std::string& prefix);

/// Removes a list of entries in use unless it is locked: the last process that had it open has ended.
bool remove_list_if_ended(const std::string& path, const FolderTrust& trust);

/// Returns the names of the entries that some process has in use, and removes the lists of processes that have ended.
/// Throws SourceError for a list that cannot be read: any entry may be on it.
std::set<std::string> entries_in_use(const std::string& dir, const FolderTrust& trust);

}  // namespace levada
