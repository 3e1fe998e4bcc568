#include "levada/launch/user_secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/host.h"
#include "levada/base/private_files.h"
#include "levada/base/unique_fd.h"

namespace levada::launch {
namespace {

constexpr std::size_t min_secret_characters = 16;
constexpr const char* file_name = "secret";
constexpr const char* secret_remedy = "or set LEVADA_SECRET to the same text, which only this job knows, on all ranks";

[[noreturn]] void fail(const std::string& path, const char* call) {
  throw EngineError(
      fmt::format("cannot use {}, by which ranks of this user recognize each other ({}: {}); repair it, {}", path, call,
                  std::strerror(errno), secret_remedy));
}

/// Throws EngineError unless only this user can have written or read in it.
void expect_private(const UniqueFd& fd, const std::string& path) {
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) fail(path, "fstat");
  if (found.st_uid != ::geteuid()) {
    throw EngineError(
        fmt::format("{} belongs to another user (uid {}), so it cannot identify this user's "
                    "processes; have it removed, {}",
                    path, found.st_uid, secret_remedy));
  }
  if ((found.st_mode & 077U) == 0) return;
  throw EngineError(
      fmt::format("{} is open to other users (mode {:04o}), so it cannot identify this user's "
                  "processes; remove it, {}",
                  path, found.st_mode & 07777U, secret_remedy));
}

UniqueFd open_private_folder(const std::string& path) {
  if (const int error = create_private_folder(path); error != 0) {
    errno = error;
    fail(path, "mkdir");
  }
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) fail(path, "open");
  expect_private(folder, path);
  return folder;
}

/// Creates the file atomically, unless it exists.
void create_secret(const UniqueFd& folder, const std::string& path) {
  const Secret secret = random_secret();
  const std::string partial = fmt::format(".{}.{}", file_name, to_hex(random_challenge()));
  const UniqueFd file(
      ::openat(folder.get(), partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) fail(path, "open");
  const bool is_whole = ::write(file.get(), secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  const bool is_there =
      is_whole && (::linkat(folder.get(), partial.c_str(), folder.get(), file_name, 0) == 0 || errno == EEXIST);
  const int error = errno;
  ::unlinkat(folder.get(), partial.c_str(), 0);
  errno = error;
  if (!is_there) fail(path, is_whole ? "link" : "write");
}

UniqueFd open_secret(const UniqueFd& folder) {
  return UniqueFd(::openat(folder.get(), file_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
}

Secret read_secret(const std::string& folder_path) {
  const UniqueFd folder = open_private_folder(folder_path);
  const std::string path = folder_path + "/" + file_name;
  UniqueFd file = open_secret(folder);
  if (!file && errno == ENOENT) {
    create_secret(folder, path);
    file = open_secret(folder);
  }
  if (!file) fail(path, "open");
  expect_private(file, path);
  // Keeps cleaners of old files in /tmp from deleting it between two ranks of one start.
  ::futimens(file.get(), nullptr);
  Secret secret;
  if (::read(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    throw EngineError(
        fmt::format("{} does not contain the {} bytes that Levada wrote; remove it", path, secret.size()));
  }
  return secret;
}

bool is_of_another_user(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && found.st_uid != ::geteuid();
}

}  // namespace

std::string home_folder() {
  std::vector<char> text(16384);
  passwd entry{}, *found = nullptr;
  const bool is_found = ::getpwuid_r(::geteuid(), &entry, text.data(), text.size(), &found) == 0 && found != nullptr;
  return is_found ? found->pw_dir : "";
}

Secret user_secret(const std::string& folder, const std::string& home,
                   const std::function<const char*(const char*)>& get) {
  if (const char* const text = get(secret_variable); text != nullptr) {
    if (std::string_view(text).size() < min_secret_characters) {
      throw InvalidArgument(
          fmt::format("{} has {} characters; set it to at least {} random ones, the same on all ranks", secret_variable,
                      std::string_view(text).size(), min_secret_characters));
    }
    return blake2s(as_bytes(text));
  }
  if (::geteuid() == overflow_uid()) {
    throw InvalidArgument(fmt::format(
        "this process has the user id {}, which the system reports for every user of another user namespace, "
        "so it cannot tell which processes are its own user's; run it as another user, initialize "
        "torch.distributed first, {}",
        ::geteuid(), secret_remedy));
  }
  const auto path = fmt::format("{}/levada-{}", folder, ::geteuid());
  return read_secret(is_of_another_user(path) && !home.empty() ? home + "/.cache/levada/secret" : path);
}

}  // namespace levada::launch
