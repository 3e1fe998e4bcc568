#include "levada/base/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "levada/base/deadline.h"
#include "levada/base/fault_testing.h"

namespace levada {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() : folder_((std::filesystem::temp_directory_path() / "levada-XXXXXX").string()) {
    if (::mkdtemp(folder_.data()) == nullptr) std::abort();
  }
  ~AtomicFileTest() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/state"; }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      found.push_back(entry.path().filename().string());
    }
    return found;
  }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }

 private:
  std::string folder_;
};

TEST_F(AtomicFileTest, IsRenamedIntoPlaceOnceComplete) {
  std::ofstream(path()) << "before";
  {
    AtomicFile file(path());
    file.write(as_bytes("after"));
    file.sync();
    EXPECT_EQ(content(), "before");
    file.publish();
    EXPECT_EQ(content(), "after");
  }
  EXPECT_THAT(names(), ElementsAre("state"));
}

TEST_F(AtomicFileTest, LeavesNothingIfDiscarded) {
  {
    AtomicFile file(path());
    file.write(as_bytes("half"));
  }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(AtomicFileTest, KeepsThePartialFileOfAnotherWriter) {
  const auto partial = path().substr(0, path().size() - 5) + ".state.partial";
  {
    AtomicFile file(path());
    std::filesystem::remove(partial);
    std::ofstream(partial) << "another writer's";
    EXPECT_THROW(file.publish(), FileBusy);
  }
  EXPECT_THAT(names(), ElementsAre(".state.partial"));
}

TEST_F(AtomicFileTest, ReplacesThePartialFileOfADeadProcess) {
  const auto child = ::fork();
  if (child == 0) {
    AtomicFile file(path());
    file.write(as_bytes("longer than what comes later"));
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_THAT(names(), ElementsAre(".state.partial"));
  AtomicFile file(path());
  file.write(as_bytes("later"));
  file.publish();
  EXPECT_EQ(content(), "later");
  EXPECT_THAT(names(), ElementsAre("state"));
}

TEST_F(AtomicFileTest, AdmitsOneWriterAtATime) {
  AtomicFile file(path());
  EXPECT_THAT(fault_of([&] { AtomicFile{path()}; }), HasSubstr("another process is writing " + path()));
  file.write(as_bytes("mine"));
  file.publish();
  EXPECT_EQ(content(), "mine");
  AtomicFile next(path());
}

TEST_F(AtomicFileTest, RetriesShortAndInterruptedWrites) {
  int calls = 0;
  AtomicFile file(path(), [&](int fd, const void* bytes, std::size_t size) -> ssize_t {
    if (++calls % 2 == 1) {
      errno = EINTR;
      return -1;
    }
    return ::write(fd, bytes, std::min<std::size_t>(size, 3));
  });
  file.write(as_bytes("0123456789"));
  file.publish();
  EXPECT_EQ(content(), "0123456789");
}

TEST_F(AtomicFileTest, ReportsAFullDiskAndLeavesNothing) {
  std::ofstream(path()) << "before";
  EXPECT_EQ(fault_of([&] {
              AtomicFile file(path(), [](int, const void*, std::size_t) -> ssize_t {
                errno = ENOSPC;
                return -1;
              });
              file.write(as_bytes("after"));
            }),
            "SourceError: cannot write " + path() + ": the disk is full, and nothing of it is left there");
  EXPECT_THAT(names(), ElementsAre("state"));
  EXPECT_EQ(content(), "before");
}

TEST_F(AtomicFileTest, DoesNotWriteToAnOpenOrLinkedFile) {
  const auto partial = path().substr(0, path().size() - 5) + ".state.partial";
  const auto other = path() + ".other";
  std::ofstream(other) << "precious";
  std::filesystem::create_hard_link(other, partial);
  std::ifstream held(partial);
  AtomicFile file(path());
  file.write(as_bytes("mine"));
  file.publish();
  EXPECT_EQ(content(), "mine");
  std::ostringstream text;
  text << held.rdbuf();
  EXPECT_EQ(text.str(), "precious");
}

TEST_F(AtomicFileTest, RejectsThePartialFileOfAnotherUser) {
  const auto partial = path().substr(0, path().size() - 5) + ".state.partial";
  std::ofstream(partial) << "theirs";
  if (::chown(partial.c_str(), 12345, 12345) != 0) {
    GTEST_SKIP() << "only root can give a file to another user";  // skipped without: root
  }
  EXPECT_THAT(fault_of([&] { AtomicFile{path()}; }), HasSubstr(".state.partial belongs to another user: remove it"));
}

TEST_F(AtomicFileTest, RemovesOnlyPartialFilesOfDeadProcesses) {
  std::ofstream(path() + ".index") << "whole";
  std::ofstream(path().substr(0, path().size() - 5) + ".dead.index.partial") << "half";
  std::ofstream(path().substr(0, path().size() - 5) + ".dead.bin.partial") << "half of something else";
  const AtomicFile alive(path() + "2.index");
  const auto is_index = [](std::string_view name) { return name.ends_with(".index"); };
  AtomicFile::remove_abandoned(path().substr(0, path().size() - 6), is_index);
  EXPECT_THAT(names(), UnorderedElementsAre("state.index", ".dead.bin.partial", ".state2.index.partial"));
  AtomicFile::remove_abandoned(path() + "/none", is_index);
}

/// Lets `signal` end the process as it ends the command: status 3, without its partial files.
void end_at(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int) {
    AtomicFile::remove_partial_files();
    ::_exit(3);
  };
  ::sigaction(signal, &action, nullptr);
}

TEST_F(AtomicFileTest, SignalHandlerKeepsThePartialFileOfAnotherProcess) {
  const auto partial = path().substr(0, path().size() - 5) + ".state.partial";
  const UniqueFd held(::open(partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  const auto child = ::fork();
  if (child == 0) {
    end_at(SIGALRM);
    constexpr itimerval soon{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 20'000}};
    ::setitimer(ITIMER_REAL, &soon, nullptr);
    while (true) fault_of([&] { AtomicFile{path()}; });  // most of the work happens before it is refused
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
  EXPECT_THAT(names(), ElementsAre(".state.partial"));
}

TEST_F(AtomicFileTest, SignalHandlerRemovesThePartialFile) {
  const auto child = ::fork();
  if (child == 0) {
    end_at(SIGHUP);
    AtomicFile file(path()), second(path() + "2");
    file.write(as_bytes("half"));
    second.publish();
    ::raise(SIGHUP);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_THAT(names(), ElementsAre("state2"));
}

TEST_F(AtomicFileTest, SignalHandlerRemovesPartialFilesAtAnyMoment) {
  constexpr int trials = 300;
  const auto enough = Deadline::after(std::chrono::seconds(10));  // a sanitizer needs a second for each
  for (int trial = 0; trial < trials && !enough.expired(); ++trial) {
    const auto child = ::fork();
    if (child == 0) {
      end_at(SIGALRM);
      const auto write = [](const std::string& path) {
        while (true) {
          AtomicFile file(path);
          file.write(as_bytes("half"));
          file.publish(false);
        }
      };
      std::thread second(write, path() + "2");
      const itimerval soon{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 100 + 7 * trial}};
      ::setitimer(ITIMER_REAL, &soon, nullptr);
      write(path());
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
    ASSERT_THAT(names(), Each(Not(HasSubstr(".partial")))) << trial;
  }
}

TEST_F(AtomicFileTest, NamesThePathThatCannotBeCreated) {
  EXPECT_THAT(fault_of([&] { AtomicFile{path() + "/none"}; }), HasSubstr("cannot create " + path() + "/none: No such"));
  std::filesystem::create_symlink("/etc/passwd", path().substr(0, path().size() - 5) + ".state.partial");
  EXPECT_THAT(fault_of([&] { AtomicFile{path()}; }), HasSubstr("cannot create"));
}

}  // namespace
}  // namespace levada
