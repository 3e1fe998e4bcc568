#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "levada/base/unique_fd.h"
#include "levada/launch/inherited.h"
#include "levada/launch/launch.h"

namespace levada::launch {
namespace {

using ::testing::HasSubstr;

/// Runs a shell script as every rank.
LocalResult run_script(int size, const std::string& script, Duration grace = std::chrono::seconds(20)) {
  return run_local(size, {"-c", script}, {.program = "/bin/bash", .grace = grace});
}

TEST(RunLocal, SucceedsIfEveryRankDoes) {
  const auto result = run_script(3, "exit 0");
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.message, "");
}

TEST(RunLocal, ForwardsVariablesThatDescribeNoRank) {
  const std::array places = {"LEVADA_LOCAL_RANK", "LEVADA_LOCAL_WORLD_SIZE", "LEVADA_RENDEZVOUS"};
  for (const char* name : places) ::setenv(name, "1", 1);
  ::setenv("LEVADA_LOG", "info", 1);
  const auto result = run_script(
      1, R"([ "$LEVADA_LOG$LEVADA_LOCAL_RANK$LEVADA_LOCAL_WORLD_SIZE$LEVADA_RENDEZVOUS$LEVADA_RANK" = info0 ])");
  for (const char* name : places) ::unsetenv(name);
  ::unsetenv("LEVADA_LOG");
  EXPECT_EQ(result.exit_status, 0);
}

TEST(RunLocal, SetsEachRanksVariables) {
  const auto result = run_script(2, "exit $((10 * LEVADA_WORLD_SIZE + LEVADA_RANK))");
  EXPECT_THAT(result.exit_status, ::testing::AnyOf(20, 21));
  EXPECT_EQ(result.exit_status, 20 + result.first_failed.value());
}

/// Runs a shell script as every rank, as `levada run` does.
LocalResult run_program(int size, const std::string& script) {
  return run_local(size, {"-c", script},
                   {.program = "/bin/bash", .grace = std::chrono::seconds(20), .any_program = true});
}

TEST(RunLocal, SetsTorchrunsVariablesForAnyProgram) {
  const auto result = run_program(2, R"sh(
    [ "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE" = "$LEVADA_RANK 2 $LEVADA_RANK 2" ] || exit 3
    [ $MASTER_ADDR = 127.0.0.1 ] && [ $MASTER_PORT -gt 1023 ] || exit 4)sh");
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(run_script(2, "[ -z \"$RANK$WORLD_SIZE$MASTER_PORT\" ]").exit_status, 0);
}

TEST(RunLocal, RemovesTheVariablesOfAnOuterJob) {
  const std::array outer = {"RANK",       "MASTER_PORT",         "GROUP_RANK",
                            "LOCAL_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"};
  for (const char* name : outer) ::setenv(name, "7", 1);
  const auto result =
      run_program(1, R"([ "$RANK$GROUP_RANK$LOCAL_SIZE$TORCHELASTIC_RUN_ID$TORCHELASTIC_USE_AGENT_STORE" = 0 ] &&
            [ $MASTER_PORT != 7 ] && [ $(env | grep -c ^RANK=) = 1 ])");
  for (const char* name : outer) ::unsetenv(name);
  EXPECT_EQ(result.exit_status, 0);
}

TEST(RunLocal, NamesTheFailedRank) {
  const auto result = run_script(3, "[ $LEVADA_RANK != 1 ] || exit 7");
  EXPECT_EQ(result.exit_status, 7);
  EXPECT_EQ(result.first_failed, 1);
  EXPECT_EQ(result.message, "rank 1 ended with status 7");
}

TEST(RunLocal, NamesTheKilledRank) {
  const auto result = run_script(3, "[ $LEVADA_RANK != 2 ] || kill -9 $$");
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_EQ(result.first_failed, 2);
  EXPECT_THAT(result.message, HasSubstr("rank 2 was lost: killed by signal 9"));
}

TEST(RunLocal, DetectsEndedRanksEvenIfAThreadReceivesEverySignal) {
  std::atomic<bool> stop = false;
  std::thread other([&] { stop.wait(false); });
  EXPECT_EQ(run_script(2, "sleep 0.2").exit_status, 0);
  stop = true;
  stop.notify_one();
  other.join();
}

TEST(RunLocal, EndsTheRemainingRanksAfterAFailure) {
  const auto begin = Clock::now();
  const auto result = run_script(2, "[ $LEVADA_RANK = 0 ] && exit 3; sleep 100", std::chrono::milliseconds(50));
  EXPECT_EQ(result.message, "rank 0 ended with status 3");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(50));
}

TEST(RunLocal, GivesRankZeroTimeToReportAFailure) {
  const auto script = R"sh([ $LEVADA_RANK = 1 ] && exit 3
    sleep 1; printf '\0\0\0\0\6\0\0\0reported' >&${LEVADA_REPORT%%,*}; exit 1)sh";
  const auto result = run_local(
      2, {"-c", script},
      {.program = "/bin/bash", .grace = std::chrono::milliseconds(50), .report_grace = std::chrono::seconds(50)});
  EXPECT_EQ(result.message, "reported");
}

TEST(RunLocal, StopsWaitingOnceRankZeroHasReportedAFailure) {
  const auto begin = Clock::now();
  const auto result = run_local(
      2, {"-c", "[ $LEVADA_RANK = 0 ] && exit 3; sleep 100"},
      {.program = "/bin/bash", .grace = std::chrono::milliseconds(50), .report_grace = std::chrono::seconds(90)});
  EXPECT_EQ(result.message, "rank 0 ended with status 3");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(50));
}

TEST(RunLocal, EndsAllRanksOnASignal) {
  const auto result = run_script(2, "kill -TERM $PPID; exec sleep 100");
  EXPECT_EQ(result.exit_status, 128 + SIGTERM);
  EXPECT_EQ(result.message, "");
}

TEST(RunLocal, ForwardsARepeatedSignalOnce) {
  int output[2];
  ASSERT_EQ(::pipe(output), 0);
  // The rank sends both signals. The second one has arrived long before the rank ends.
  const auto script = fmt::format(R"sh(
      trap 'n=$((n + 1)); echo >&{0}' TERM
      kill -TERM $PPID
      while [ -z "$n" ]; do sleep 0.01; done
      kill -TERM $PPID
      for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done)sh",
                                  output[1]);
  const LocalOptions patient{.program = "/bin/bash", .signal_grace = std::chrono::seconds(20)};
  EXPECT_EQ(run_local(1, {"-c", script}, patient).exit_status, 128 + SIGTERM);
  ::close(output[1]);
  std::array<char, 16> lines{};
  EXPECT_EQ(::read(output[0], lines.data(), lines.size()), 1);
  ::close(output[0]);
}

TEST(RunLocal, ReportsAProgramThatCannotBeStarted) {
  const auto result = run_local(1, {}, {.program = "/nowhere/levada"});
  EXPECT_EQ(result.exit_status, 127);
  EXPECT_EQ(result.message, "rank 0 cannot run /nowhere/levada: No such file or directory");
}

TEST(RunLocal, ReportsAFileSizeLimit) {
  const auto result = run_script(1, "kill -XFSZ $$");
  EXPECT_THAT(result.message, HasSubstr("ulimit -f"));
}

/// Starts two ranks in a separate terminal that count how often they are interrupted, presses Ctrl-C once they are
/// ready, and returns the counts. Rank 1 is in a separate session, which the terminal's Ctrl-C does not reach: any
/// interrupt that it receives was sent by run_local().
std::string interruptions_at_a_terminal() {
  int output[2];
  EXPECT_EQ(::pipe(output), 0);
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::dup2(output[1], 9);
    const auto script = R"sh(
      if [ "$LEVADA_RANK$OWN_SESSION" = 1 ]; then
        OWN_SESSION=yes exec setsid /bin/bash -c "$BASH_EXECUTION_STRING"
      fi
      trap 'n=$((n + 1))' INT
      echo ready
      if [ $LEVADA_RANK = 0 ]; then while [ -z "$n" ]; do sleep 0.1 & wait $!; done; fi
      sleep 2 & wait $!
      echo "$LEVADA_RANK:${n:-0}" >&9)sh";
    const LocalOptions patient{
        .program = "/bin/bash", .grace = std::chrono::seconds(20), .signal_grace = std::chrono::seconds(20)};
    run_local(2, {"-c", script}, patient);
    ::_exit(0);
  }
  ::close(output[1]);
  // Both ranks write to the terminal.
  std::string seen;
  char buffer[256];
  while (seen.find("ready") == seen.rfind("ready")) {
    const auto bytes = ::read(terminal, buffer, sizeof buffer);
    if (bytes <= 0) break;
    seen.append(buffer, static_cast<std::size_t>(bytes));
  }
  EXPECT_EQ(::write(terminal, "\x03", 1), 1);
  std::string counts;
  for (ssize_t bytes = 0; (bytes = ::read(output[0], buffer, sizeof buffer)) > 0;) {
    counts.append(buffer, static_cast<std::size_t>(bytes));
  }
  ::waitpid(child, nullptr, 0);
  ::close(terminal);
  ::close(output[0]);
  return counts;
}

TEST(RunLocal, LeavesCtrlCAtATerminalToTheKernel) {
  const auto counts = interruptions_at_a_terminal();
  EXPECT_THAT(counts, HasSubstr("0:1\n"));
  EXPECT_THAT(counts, HasSubstr("1:0\n"));
}

TEST(RunLocal, ForwardsHangup) {
  const auto result = run_script(2, "kill -HUP $PPID; exec sleep 100");
  EXPECT_EQ(result.exit_status, 128 + SIGHUP);
}

TEST(RunLocal, DoesNotReuseClosedStandardDescriptorsForLinks) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int fd : {0, 1, 2}) ::close(fd);
    const auto result = run_script(2, R"sh([ "$(readlink /proc/$$/fd/0)" = /dev/null ] && ! { echo x; } 2>&-)sh");
    ::_exit(result.exit_status);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(RunLocal, ForwardsTheReportOfARank) {
  // The header of a report, with rank 0 and kind 6, and its text.
  const auto result = run_script(1, R"(printf '\0\0\0\0\6\0\0\0out of data' >&${LEVADA_REPORT%%,*}; exit 1)");
  EXPECT_EQ(result.message, "out of data");
  EXPECT_EQ(result.exit_status, 1);
}

TEST(RunLocal, RejectsAReportOfAnUnknownKind) {
  const auto result = run_script(1, R"(printf '\0\0\0\0\143\0\0\0nonsense' >&${LEVADA_REPORT%%,*}; exit 1)");
  EXPECT_EQ(result.message, "rank 0 ended with status 1");
}

TEST(RunLocal, LeavesNoDescriptorsOpen) {
  const auto count = [] {
    const int probe = ::dup(0);
    ::close(probe);
    return probe;
  };
  const int before = count();
  run_script(4, "exit 0");
  EXPECT_EQ(count(), before);
}

TEST(RunLocal, PassesARankOnlyItsOwnLinks) {
  // Rank 1 of 3 has one link and the report.
  const auto script = R"([ $LEVADA_RANK != 1 ] || exit $(
    for fd in /proc/$$/fd/*; do [ ${fd##*/} -gt 2 ] && readlink $fd; done | grep -c socket))";
  EXPECT_EQ(run_script(3, script).exit_status, 2);
  EXPECT_EQ(run_program(3, script).exit_status, 2);
  EXPECT_EQ(run_program(3, "[ $(ls /proc/$$/fd | wc -l) -lt 12 ]").exit_status, 0);
}

TEST(Links, AreRejectedIfTheyBelongToAnotherProcess) {
  EXPECT_THROW(inherit_links("977:1", 1, 2), InvalidArgument);
  EXPECT_THROW(inherit_links("", 1, 2), InvalidArgument);
}

TEST(Links, CanBeTakenOnlyOnce) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
  const int fd = sockets[0];
  const UniqueFd other(sockets[1]);
  const auto text = links_text({fd});
  {
    const auto links = inherit_links(text.c_str(), 1, 2);
    ASSERT_EQ(links.size(), 1u);
    EXPECT_EQ(links[0].get(), fd);
    EXPECT_THROW(inherit_links(text.c_str(), 1, 2), InvalidArgument);
  }
}

TEST(Links, DoNotCloseAnotherFileAtTheirDescriptor) {
  int sockets[2], pipes[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
  ASSERT_EQ(::pipe(pipes), 0);
  const UniqueFd one(sockets[0]), other(sockets[1]), reads(pipes[0]), writes(pipes[1]);
  const auto text = links_text({one.get()});
  ASSERT_EQ(::dup2(writes.get(), one.get()), one.get());
  EXPECT_THROW(inherit_links(text.c_str(), 1, 2), InvalidArgument);
  EXPECT_EQ(::fcntl(one.get(), F_GETFD), 0);
}

}  // namespace
}  // namespace levada::launch
