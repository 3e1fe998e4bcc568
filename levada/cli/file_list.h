// Lists of paths that are too long for a command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace levada::cli {

/// Adds --files-from FILE.
void add_files_from(CLI::App& command, std::vector<std::string>& from);

/// Returns the paths in the file `from`, one per line; "-" is standard input. Ignores blanks around a path, empty lines
/// and lines that begin with #. Throws InvalidArgument if the file cannot be read or contains no path.
std::vector<std::string> read_file_list(const std::string& from);
/// Appends the paths in `from` to `paths`; does nothing if `from` is empty.
void append_file_lists(std::vector<std::string>& paths, const std::vector<std::string>& from);

/// Passes a list on to ranks that this process starts, since they can read neither its standard input nor a pipe again.
/// The list exists as long as this object.
class SharedFileList {
 public:
  /// Throws EngineError if the system has no room for it, InvalidArgument if a path ends with a
  /// blank or contains a line end.
  explicit SharedFileList(const std::vector<std::string>& paths);
  ~SharedFileList();
  SharedFileList(const SharedFileList&) = delete;
  SharedFileList& operator=(const SharedFileList&) = delete;

  /// Returns a path to pass to read_file_list() in any process of this user.
  std::string path() const;

 private:
  std::FILE* file_;
};

}  // namespace levada::cli
