// Files by their names: patterns and folders.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "levada/tokens/text_reader.h"

namespace levada {

/// What paths lead to.
struct FoundFiles {
  std::vector<std::string> files;
  std::map<std::string, std::int64_t> left_out = {};  ///< files in folders that are no data, by the ends of their names
};

/// The files that `paths` name, in this order: a name as it is; a pattern (glob(7): *, ?, [...], and ** for any
/// number of folders) that names no file itself, its matches sorted by their bytes; a folder, or one that a pattern
/// matches, all files below it that are texts (is_text()) or .bin, sorted alike, and of .json those that hold JSON
/// Lines. Names in a folder that begin with a dot (.git) or an underscore (_temporary, _SUCCESS) are not looked at.
/// Symbolic links to folders are followed, but each folder is read once, and the entries of the token cache in the
/// folder `token_cache` are not. A .idx, or a prefix of both, beside its .bin names the same tokens and is left out.
/// URLs alike, with what `list` finds (RemoteFiles::list()); a URL of a file that can be read, by its name, is not
/// looked for, and file:// is left out.
///
/// Throws SourceError, naming the pattern that nothing matches, the folder that holds no such file, the folder that
/// holds .txt beside other data, as these may be a licence or notes, and a file that would be read twice.
FoundFiles expand_paths(const std::vector<std::string>& paths, std::span<const TextFormat> formats = {},
                        const std::string& token_cache = {},
                        const std::function<std::vector<std::string>(const std::string&)>& list = {});

}  // namespace levada
