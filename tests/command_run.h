// Runs the built command as users do, and looks after the processes that it starts.
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

/// A started command. Its output goes to files, so that it never waits for a reader.
class Command {
 public:
  /// `variables` are added to the environment, from which those of launchers are taken away.
  /// `program`: in place of the command.
  /// Arguments that name a text, by the end of its name, and no tokenizer get `--tokenizer bytes`.
  explicit Command(const std::vector<std::string>& arguments, const Variables& variables = {},
                   const char* program = nullptr);
  /// Kills it if it still runs.
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Rank processes by rank, as far as they have been started.
  std::map<int, pid_t> ranks() const;
  /// Waits until `count` ranks are there, or the command has ended, or a long time has passed.
  std::map<int, pid_t> wait_for_ranks(std::size_t count) const;
  /// Waits for its end; kills it after a long time, which shows in the status.
  Outcome wait();

 private:
  bool has_ended() const;

  pid_t pid_ = 0;
  std::string out_path_;
  std::string err_path_;
};

/// Waits until there is such a file, for a long time at most; whether there is. A feed with --save-state and --every 1
/// is under way once its state is there.
bool wait_for_file(const std::string& path);

Outcome run(const std::vector<std::string>& arguments, const Variables& variables = {});

/// Whether all of these processes are gone, or will be within two seconds.
bool gone(const std::map<int, pid_t>& processes);

/// A folder of this test program's own, removed at its end; the command keeps its token cache there.
const std::string& scratch();
/// Writes `text` to a file there and gives its path.
std::string write_file(const std::string& name, const std::string& text);
/// A .jsonl of `documents` documents of a few hundred bytes each, the same every time.
std::string make_corpus(const std::string& name, int documents);

}  // namespace levada::test
