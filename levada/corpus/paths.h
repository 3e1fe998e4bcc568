// Finds files by names, patterns and folders.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "levada/tokens/text_reader.h"

namespace levada {

/// The result of expanding paths.
struct FoundFiles {
  std::vector<std::string> files;
  std::map<std::string, std::int64_t> left_out = {};  ///< counts files in folders that are not data, by extension
};

/// Returns the files that `paths` denote, in the order of `paths`:
/// - a name stands for itself;
/// - a pattern (glob(7): *, ?, [...], and ** for any number of folders), unless a file has that name, stands for its
///   matches, sorted bytewise, without folders of skipped names, unless the pattern's last part begins so;
/// - a folder, named or matched by a pattern, stands for all files below it that are texts (is_text()), .bin, or .json
///   with JSON Lines, sorted bytewise.
/// Skips names in a folder that begin with a dot (.git) or an underscore (_temporary, _SUCCESS), and the entries of
/// token caches, which in the folder `token_cache` are known by their names. Follows symbolic links to folders, but
/// reads each folder once. Leaves out a .idx, or a prefix of both, next to its .bin, because it names the same tokens.
/// Treats URLs the same way, with `list` (RemoteFiles::list()) to find files, but does not look up a URL whose name is
/// that of a data file, and removes file://.
///
/// Throws SourceError, naming a pattern without matches, a folder without data files, a folder with .txt in addition to
/// other data, since the .txt may be a license or notes, a folder with a file in two forms (a.jsonl and a.jsonl.gz), a
/// name of both a folder and a .bin with .idx, and a file that would be read twice.
FoundFiles expand_paths(const std::vector<std::string>& paths, std::span<const TextFormat> formats = {},
                        const std::string& token_cache = {},
                        const std::function<std::vector<std::string>(const std::string&)>& list = {});

/// Returns the path for expand_paths() of a path or pattern relative to `folder`, in whose own name *, ? and [ have no
/// meaning.
std::string path_in_folder(const std::string& folder, const std::string& path);

}  // namespace levada
