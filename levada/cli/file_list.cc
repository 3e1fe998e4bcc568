#include "levada/cli/file_list.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/base/unique_fd.h"

namespace levada::cli {
namespace {

constexpr std::string_view blanks = " \t\r";
constexpr std::size_t max_bytes = std::size_t{256} << 20;

[[noreturn]] void throw_bad_list(const std::string& from, std::string_view why) {
  throw InvalidArgument(fmt::format("--files-from {}: {}", from, why));
}

std::string content_of(const std::string& from) {
  const UniqueFd file(from == "-" ? ::dup(STDIN_FILENO) : ::open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw_bad_list(from, std::strerror(errno));
  std::string content;
  std::string piece(std::size_t{64} << 10, '\0');
  while (true) {
    const auto got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_bad_list(from, std::strerror(errno));
    if (got == 0) return content;
    content.append(piece, 0, static_cast<std::size_t>(got));
    if (content.size() > max_bytes) throw_bad_list(from, "it is longer than 256 MiB");
  }
}

}  // namespace

void add_files_from(CLI::App& command, std::vector<std::string>& from) {
  command.add_option("--files-from", from, "List of further paths, one per line; -: standard input")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

std::vector<std::string> read_file_list(const std::string& from) {
  auto content = content_of(from);
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (content.starts_with(byte_order_mark)) content.erase(0, byte_order_mark.size());
  if (content.find('\0') != content.npos) throw_bad_list(from, "it contains a zero byte; write one path per line");
  std::vector<std::string> paths;
  for (std::size_t at = 0; at < content.size();) {
    const auto end = std::min(content.find('\n', at), content.size());
    const std::string_view line = std::string_view(content).substr(at, end - at);
    const auto first = std::min(line.find_first_not_of(blanks), line.size());
    const auto path = line.substr(first, line.find_last_not_of(blanks) + 1 - first);
    if (!path.empty() && !path.starts_with('#')) paths.emplace_back(path);
    at = end + 1;
  }
  if (paths.empty()) throw_bad_list(from, "it lists no file");
  return paths;
}

void append_file_lists(std::vector<std::string>& paths, const std::vector<std::string>& from) {
  for (const auto& list : from) std::ranges::move(read_file_list(list), std::back_inserter(paths));
}

SharedFileList::SharedFileList(const std::vector<std::string>& paths) : file_(std::tmpfile()) {
  if (file_ == nullptr) throw EngineError(fmt::format("cannot pass on the list of files: {}", std::strerror(errno)));
  for (const auto& path : paths) {
    if (path.empty()) continue;
    const bool ends_with_blank = blanks.find(path.back()) != blanks.npos;
    if (ends_with_blank || path.find('\n') != path.npos) {
      std::fclose(file_);
      throw InvalidArgument(fmt::format("'{}' {}; rename it, or name it without --files-from", printable(path),
                                        ends_with_blank ? "ends with a blank" : "contains a line end"));
    }
    const bool is_plain = blanks.find(path.front()) == blanks.npos && path.front() != '#';
    std::fprintf(file_, "%s%s\n", is_plain ? "" : "./", path.c_str());
  }
  if (std::fflush(file_) == 0 && std::ferror(file_) == 0) return;
  const int error = errno;
  std::fclose(file_);
  throw EngineError(fmt::format("cannot pass on the list of files: {}", std::strerror(error)));
}

SharedFileList::~SharedFileList() {
  std::fclose(file_);
}

std::string SharedFileList::path() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), ::fileno(file_));
}

}  // namespace levada::cli
