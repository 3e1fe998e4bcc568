// Lists of paths that are too long for a command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace levada::cli {

/// Adds --files-from FILE.
void add_files_from(CLI::App& command, std::string& from);

/// The paths in the file `from`, one a line; "-" is standard input. Blanks around a path, empty lines and those that
/// begin with # count for nothing. Throws InvalidArgument for what cannot be read or names nothing.
std::vector<std::string> read_file_list(const std::string& from);
/// Appends those to `paths`; none if `from` is empty.
void append_file_list(std::vector<std::string>& paths, const std::string& from);

/// The same list for ranks that this process starts, which can read neither its standard input nor a pipe again. Exists
/// as long as this.
class SharedFileList {
 public:
  /// Throws EngineError where the system has no room for it, InvalidArgument for a path that ends with a blank.
  explicit SharedFileList(const std::vector<std::string>& paths);
  ~SharedFileList();
  SharedFileList(const SharedFileList&) = delete;
  SharedFileList& operator=(const SharedFileList&) = delete;

  /// For read_file_list(), in any process of this user.
  std::string path() const;

 private:
  std::FILE* file_;
};

}  // namespace levada::cli
