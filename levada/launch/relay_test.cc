#include "levada/launch/relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace levada::launch {
namespace {

TEST(LineCutter, ReturnsWholeLinesWithTheirEnds) {
  LineCutter lines;
  lines.append("one\ntwo\nthr");
  EXPECT_EQ(lines.take_lines(), "one\ntwo\n");
  EXPECT_EQ(lines.take_lines(), "");
  lines.append("ee");
  EXPECT_EQ(lines.take_lines(), "");
  lines.append("\n");
  EXPECT_EQ(lines.take_lines(), "three\n");
  EXPECT_TRUE(lines.is_empty());
}

TEST(LineCutter, JoinsPiecesOfALine) {
  LineCutter lines;
  std::string taken;
  for (const char byte : std::string("a line\r\nand\nanother")) {
    lines.append({&byte, 1});
    const auto part = lines.take_lines();
    EXPECT_TRUE(part.empty() || part.ends_with('\n')) << part;
    taken += part;
  }
  EXPECT_EQ(taken, "a line\r\nand\n");
  EXPECT_EQ(lines.take_rest(), "another");
  EXPECT_TRUE(lines.is_empty());
}

TEST(LineCutter, TreatsACarriageReturnWithoutANewlineAsALineEnd) {
  LineCutter lines;
  lines.append("10%\r");
  EXPECT_EQ(lines.take_lines(), "");
  lines.append("20%\r");
  EXPECT_EQ(lines.take_lines(), "10%\r");
  lines.append("\n");
  EXPECT_EQ(lines.take_lines(), "20%\r\n");
}

TEST(LineCutter, SplitsALineThatIsTooLong) {
  LineCutter lines;
  lines.append(std::string(LineCutter::max_bytes, 'x'));
  EXPECT_EQ(lines.take_lines(), "");
  lines.append("y");
  EXPECT_EQ(lines.take_lines().size(), LineCutter::max_bytes + 1);
  lines.append("z\n");
  EXPECT_EQ(lines.take_lines(), "z\n");
}

TEST(LinePrefixer, ShowsTheRankBeforeEachLine) {
  LinePrefixer prefixer;
  EXPECT_EQ(prefixer.show(2, 0, "one\n\ntwo\r\n"), "[2] one\n[2] \n[2] two\r\n");
  EXPECT_EQ(prefixer.show(10, 1, "three\n"), "[10] three\n");
}

TEST(LinePrefixer, ContinuesAnOpenLine) {
  LinePrefixer prefixer;
  EXPECT_EQ(prefixer.show(0, 0, "(Pdb) "), "[0] (Pdb) ");
  EXPECT_EQ(prefixer.show(0, 0, "more\n"), "more\n");
}

TEST(LinePrefixer, EndsAnOpenLineBeforeAnotherStreamsLine) {
  LinePrefixer prefixer;
  EXPECT_EQ(prefixer.show(0, 0, "(Pdb) "), "[0] (Pdb) ");
  EXPECT_EQ(prefixer.show(1, 0, "step\n"), "\n[1] step\n");
  EXPECT_EQ(prefixer.show(0, 0, "more\n"), "[0] more\n");
}

TEST(LinePrefixer, ClearsTheTextOfAProgressBar) {
  LinePrefixer prefixer;
  EXPECT_EQ(prefixer.show(0, 1, "\r"), "\r");
  EXPECT_EQ(prefixer.show(0, 1, "90%\r"), "[0] 90%\r");
  EXPECT_EQ(prefixer.show(1, 0, "step\n"), "[1] \x1b[Kstep\n");
  EXPECT_EQ(prefixer.show(1, 0, "step\n"), "[1] step\n");
}

/// Polls and serves once, as the launcher does.
void serve(Relay& relay) {
  std::vector<pollfd> polls;
  relay.add_to(polls);
  if (::poll(polls.data(), polls.size(), -1) < 0) ::_exit(1);
  relay.serve(polls);
}

/// Ends this process: by an alarm if serve() blocks, with status 0 if it writes a part of the output and returns.
[[noreturn]] void serve_a_pipe_with_little_room() {
  ::alarm(20);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  int output[2];
  if (::pipe(output) != 0 || ::fcntl(output[1], F_SETPIPE_SZ, static_cast<int>(2 * page)) < 0) ::_exit(2);
  const std::string filling(page, 'x'), line = std::string(page - 1, 'y') + '\n';
  if (::write(output[1], filling.data(), page) != static_cast<ssize_t>(page)) ::_exit(3);
  ::dup2(output[1], STDOUT_FILENO);
  ::dup2(output[1], STDERR_FILENO);
  Relay relay;
  const auto rank = relay.open_rank();
  for (const auto& end : rank) {
    if (::write(end.get(), line.data(), page) != static_cast<ssize_t>(page)) ::_exit(4);
  }
  serve(relay);  // reads
  serve(relay);  // writes
  ::_exit(relay.has_unwritten() ? 0 : 5);
}

TEST(RelayDeathTest, DoesNotBlockIfBothOutputsAreOnePipe) {
  EXPECT_EXIT(serve_a_pipe_with_little_room(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace levada::launch
