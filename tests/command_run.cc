#include "command_run.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

extern char** environ;

namespace levada::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto long_time = std::chrono::seconds(60);

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

bool is_launchers(const std::string& variable) {
  for (const char* prefix : {"LEVADA_", "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_",
                             "PMI_", "PMIX_", "MPI_LOCAL", "NO_COLOR", "XDG_CACHE_HOME="}) {
    if (variable.starts_with(prefix)) return true;
  }
  return false;
}

std::vector<std::string> environment_with(const Variables& variables) {
  // If a name occurs twice, the first value is used.
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  environment.push_back("XDG_CACHE_HOME=" + scratch());
  for (char** each = environ; *each != nullptr; ++each) {
    if (!is_launchers(*each)) environment.emplace_back(*each);
  }
  return environment;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Returns the parent's id, and whether the process is alive rather than a zombie.
std::pair<pid_t, bool> parent_of(pid_t pid) {
  const auto stat = read_file(fmt::format("/proc/{}/stat", pid));
  const auto behind_name = stat.rfind(')');
  if (behind_name == std::string::npos) return {0, false};
  std::istringstream words(stat.substr(behind_name + 1));
  char state = 'X';
  pid_t parent = 0;
  words >> state >> parent;
  return {parent, state != 'Z' && state != 'X'};
}

/// Returns the rank in a process's environment, or -1 if it has none.
int rank_of(pid_t pid) {
  std::istringstream variables(read_file(fmt::format("/proc/{}/environ", pid)));
  for (std::string each; std::getline(variables, each, '\0');) {
    if (each.starts_with("LEVADA_RANK=")) return std::atoi(each.c_str() + 12);
  }
  return -1;
}

/// Polls every millisecond until `holds` returns true or `longest` has passed. Returns whether it became true.
template <typename Condition>
bool comes_true(const Condition& holds, std::chrono::milliseconds longest) {
  const auto end = Clock::now() + longest;
  while (!holds()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

struct Scratch {
  std::string path;
  Scratch() {
    auto name = (std::filesystem::temp_directory_path() / "levada-command-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~Scratch() { std::filesystem::remove_all(path); }
};

std::vector<std::string> with_tokenizer(std::vector<std::string> arguments) {
  const std::array commands = {"feed", "plan", "convert", "inspect", "cache"};
  if (arguments.empty() || std::ranges::find(commands, arguments.front()) == commands.end()) return arguments;
  if (std::ranges::find(arguments, "--tokenizer") != arguments.end()) return arguments;
  const auto is_text = [](const std::string& argument) {
    const std::array ends = {".jsonl", ".txt", ".gz", ".zst"};
    return std::ranges::any_of(ends, [&](const char* end) { return argument.ends_with(end); });
  };
  if (std::ranges::any_of(arguments, is_text)) arguments.insert(arguments.begin() + 1, {"--tokenizer", "bytes"});
  return arguments;
}

}  // namespace

Command::Command(const std::vector<std::string>& arguments, const Variables& variables, const char* program) {
  static std::atomic<int> number{0};
  out_path_ = fmt::format("{}/{}.out", scratch(), ++number);
  err_path_ = fmt::format("{}/{}.err", scratch(), number);
  auto words = with_tokenizer(arguments);
  words.insert(words.begin(), program != nullptr ? program : LEVADA_COMMAND);
  auto environment = environment_with(variables);
  const auto argv = pointers_to(words);
  const auto envp = pointers_to(environment);
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::dup2(::open("/dev/null", O_RDONLY), 0);
  ::dup2(::open(out_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
  ::dup2(::open(err_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
  ::execve(argv[0], argv.data(), envp.data());
  ::_exit(127);
}

Command::~Command() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Command::signal(int number) const {
  ::kill(pid_, number);
}

std::map<int, pid_t> Command::ranks() const {
  std::map<int, pid_t> found;
  DIR* folder = ::opendir("/proc");
  while (const dirent* entry = ::readdir(folder)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0 || parent_of(pid) != std::pair(pid_, true)) continue;
    if (const int rank = rank_of(pid); rank >= 0) found[rank] = pid;
  }
  ::closedir(folder);
  return found;
}

bool Command::has_ended() const {
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  return info.si_pid == pid_;
}

std::map<int, pid_t> Command::wait_for_ranks(std::size_t count) const {
  std::map<int, pid_t> found;
  comes_true(
      [&] {
        found = ranks();
        return found.size() >= count || has_ended();
      },
      long_time);
  return found;
}

Outcome Command::wait() {
  if (!comes_true([&] { return has_ended(); }, long_time)) ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, read_file(out_path_), read_file(err_path_)};
}

bool wait_for_file(const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!std::filesystem::exists(path) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return std::filesystem::exists(path);
}

Outcome run(const std::vector<std::string>& arguments, const Variables& variables) {
  return Command(arguments, variables).wait();
}

bool gone(const std::map<int, pid_t>& processes) {
  const auto all_gone = [&] {
    for (const auto& [rank, pid] : processes) {
      if (parent_of(pid).second) return false;
    }
    return true;
  };
  return comes_true(all_gone, std::chrono::seconds(10));
}

const std::string& scratch() {
  static const Scratch folder;
  return folder.path;
}

std::string write_file(const std::string& name, const std::string& text) {
  auto path = scratch() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string make_corpus(const std::string& name, int documents) {
  std::string lines;
  for (int i = 0; i < documents; ++i) {
    std::string text;
    for (int word = 0; word < 40 + i % 30; ++word) text += fmt::format("{} ", (i + 1) * (word + 7) % 9973);
    lines += fmt::format(R"({{"id": {}, "text": "{}"}})", i, text) + "\n";
  }
  return write_file(name, lines);
}

}  // namespace levada::test
