// Runs the built command as users do, and tracks the processes that it starts.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace levada::test {

struct Outcome {
  int status = 0;  ///< exit status, or 128+N for signal N
  std::string out;
  std::string err;
};

using Variables = std::map<std::string, std::string>;

/// A started command. Its output goes to files, so that it never blocks on a full pipe.
class Command {
 public:
  /// Adds `variables` to the environment and removes the variables of launchers. Runs `program`, if given, instead of
  /// the command. If an argument has the extension of a text file and none names a tokenizer, adds `--tokenizer bytes`.
  explicit Command(const std::vector<std::string>& arguments, const Variables& variables = {},
                   const char* program = nullptr);
  /// Kills it if it is still running.
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Returns the processes of the ranks that have started so far, by rank.
  std::map<int, pid_t> ranks() const;
  /// Waits until `count` ranks have started, the command has ended, or a long time has passed.
  std::map<int, pid_t> wait_for_ranks(std::size_t count) const;
  /// Waits for it to end. Kills it after a long time, which shows in the status.
  Outcome wait();

 private:
  bool has_ended() const;

  pid_t pid_ = 0;
  std::string out_path_;
  std::string err_path_;
};

/// Waits a long time at most until the file exists. Returns whether it does. A feed with --save-state and --every 1 has
/// begun its steps once its state exists.
bool wait_for_file(const std::string& path);

Outcome run(const std::vector<std::string>& arguments, const Variables& variables = {});

/// Returns whether all of these processes end within ten seconds.
bool gone(const std::map<int, pid_t>& processes);

/// Returns a temporary folder of this test program, which holds the command's token cache and is removed at exit.
const std::string& scratch();
/// Writes `text` to a file in scratch(). Returns its path.
std::string write_file(const std::string& name, const std::string& text);
/// Writes a .jsonl of `documents` documents of a few hundred bytes each, always the same ones. Returns its path.
std::string make_corpus(const std::string& name, int documents);

}  // namespace levada::test
