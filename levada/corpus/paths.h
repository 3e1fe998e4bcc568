// Files by their names: patterns and folders.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "levada/tokens/text_reader.h"

namespace levada {

/// The files that `paths` name, in this order: a name as it is; a pattern (glob(7): *, ?, [...], and ** for any
/// number of folders) that names no file itself, its matches sorted by their bytes; a folder, or one that a pattern
/// matches, all files below it that are texts (is_text()) or .bin, sorted alike, without what is hidden (.git, .cache).
/// Symbolic links to folders are followed, but each folder is read once, and the entries of the token cache in the
/// folder `token_cache` are not. A .idx, or a prefix of both, beside its .bin names the same tokens and is left out.
/// URLs alike, with what `list` finds (RemoteFiles::list()); a URL of a file that can be read, by its name, is not
/// looked for, and file:// is left out. Throws SourceError, naming the pattern that nothing matches or the folder that
/// holds no such file.
std::vector<std::string> expand_paths(const std::vector<std::string>& paths, std::span<const TextFormat> formats = {},
                                      const std::string& token_cache = {},
                                      const std::function<std::vector<std::string>(const std::string&)>& list = {});

}  // namespace levada
