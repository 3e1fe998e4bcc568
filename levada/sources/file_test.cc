#include "levada/sources/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <thread>

#include "levada/base/error.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

/// Opens a file as one in this user's own folder.
std::unique_ptr<File> open_private(const std::string& path) {
  return open_trusted_file(path, FolderTrust::of(std::filesystem::path(path).parent_path(), "it", ""));
}

using ::testing::HasSubstr;

std::string source_fault_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const SourceError& error) {
    return error.what();
  }
  return "no fault";
}

TEST(File, ReadsBytesAtAnOffset) {
  const ScratchDir dir;
  const auto file = open_file(dir.write("a.txt", "hello"));
  std::string into(4, '-');
  EXPECT_EQ(read_fully(*file, 1, into), 4);
  EXPECT_EQ(into, "ello");
  EXPECT_EQ(read_fully(*file, 3, into), 2);
  EXPECT_EQ(read_fully(*file, 9, into), 0);
  EXPECT_EQ(file->identity().size, 5);
}

TEST(File, NamesAFileThatCannotBeOpened) {
  const ScratchDir dir;
  EXPECT_THAT(source_fault_of([&] { open_file(dir.file("none.txt")); }), HasSubstr("none.txt: No such file"));
  EXPECT_THAT(source_fault_of([&] { open_file(dir.path()); }), HasSubstr("is a directory"));
  ASSERT_EQ(::mkfifo(dir.file("pipe.txt").c_str(), 0600), 0);
  EXPECT_THAT(source_fault_of([&] { open_file(dir.file("pipe.txt")); }), HasSubstr("pipe.txt is not a regular file"));
}

TEST(File, ContinuesAfterShortReads) {
  MemoryFile file("a.txt", "hello");
  file.max_at_once = 2;
  std::string into(5, '-');
  EXPECT_EQ(read_fully(file, 0, into), 5);
  EXPECT_EQ(into, "hello");
}

TEST(File, ErrorsNameTheChange) {
  const ScratchDir dir;
  const auto path = dir.write("a.txt", "hello");
  const auto file = open_file(path);
  const auto before = file->identity();
  EXPECT_EQ(source_fault_of([&] { expect_unchanged(*file, before); }), "no fault");
  std::filesystem::resize_file(path, 3);
  EXPECT_THAT(source_fault_of([&] { expect_unchanged(*file, before); }), HasSubstr("a.txt shrank from 5 to 3 bytes"));
  dir.write("a.txt", "hello, world");
  EXPECT_THAT(source_fault_of([&] { expect_unchanged(*file, before); }), HasSubstr("grew from 5 to 12 bytes"));
  const auto longer = file->identity();
  dir.write("b.txt", "hello, there");
  std::filesystem::rename(dir.file("b.txt"), path);
  EXPECT_THAT(source_fault_of([&] { expect_unchanged(*file, longer); }), HasSubstr("was removed or replaced"));
}

/// Limits the process's descriptors while it exists.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    auto limit = before_;
    limit.rlim_cur = most;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  struct rlimit before_ {};
};

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

std::string content_of(const File& file) {
  std::string into(100, '-');
  into.resize(read_fully(file, 0, into));
  return into;
}

/// Opens files "0", "1", ... that hold their own numbers.
std::vector<std::unique_ptr<File>> open_numbered(const ScratchDir& dir, int count) {
  std::vector<std::unique_ptr<File>> files;
  for (int i = 0; i < count; ++i) files.push_back(open_file(dir.write(std::to_string(i), std::to_string(i))));
  return files;
}

TEST(File, HoldsNoDescriptorBetweenReads) {
  const ScratchDir dir;
  const DescriptorLimit limit(64);
  const auto files = open_numbered(dir, 300);
  std::vector<FileIdentity> before;
  for (const auto& file : files) before.push_back(file->identity());
  for (int i = 0; i < 300; ++i)
    EXPECT_EQ(content_of(*files[static_cast<std::size_t>(i * 7 % 300)]), std::to_string(i * 7 % 300));
  EXPECT_LE(open_descriptors(), 40);
  for (std::size_t i = 0; i < 300; ++i)
    EXPECT_EQ(source_fault_of([&] { expect_unchanged(*files[i], before[i]); }), "no fault");
}

TEST(File, ManyThreadsReadDespiteFewDescriptors) {
  const ScratchDir dir;
  const DescriptorLimit limit(64);
  const auto files = open_numbered(dir, 100);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::size_t i = 0; i < 2000; ++i) {
          const auto number = (i * (thread + 1) * 37) % files.size();
          if (content_of(*files[number]) != std::to_string(number)) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(File, FreesDescriptorsForOtherFilesOfTheProcess) {
  const ScratchDir dir;
  const auto files = open_numbered(dir, 30);
  const auto path = dir.write("more", "more");
  const DescriptorLimit limit(open_descriptors());
  const std::ifstream others[] = {std::ifstream(path), std::ifstream(path)};
  EXPECT_EQ(content_of(*open_file(path)), "more");
  EXPECT_EQ(content_of(*files[3]), "3");
}

TEST(File, CanBeReadInAForkedProcess) {
  const ScratchDir dir;
  const auto files = open_numbered(dir, 3);
  const auto child = ::fork();
  if (child == 0) ::_exit(content_of(*files[1]) == "1" ? 0 : 1);
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

/// Opens enough files that the descriptor of `file` is closed.
void close_descriptor(const ScratchDir& dir) {
  const DescriptorLimit limit(32);
  open_numbered(dir, 32);
}

/// Makes the kernel answer each later pread() of this descriptor with ESTALE. Returns whether that is possible.
bool make_stale(int fd) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(fd), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ESTALE),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(File, ReopensAfterAStaleHandle) {
  const ScratchDir dir;
  const auto path = dir.write("a.txt", "hello");
  const auto child = ::fork();
  if (child == 0) {
    const int next = ::dup(0);
    ::close(next);
    const auto file = open_file(path);  // takes the descriptor `next`
    ::close(0);                         // and would take this one next
    if (!make_stale(next)) ::_exit(2);
    const bool was_stale = source_fault_of([&] { content_of(*file); }).ends_with("a.txt: Stale file handle");
    ::_exit(was_stale && content_of(*file) == "hello" ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "or this system lets no process filter its system calls";
}

TEST(File, DetectsAReplacementWhileItsDescriptorIsClosed) {
  const ScratchDir dir, others;
  const auto file = open_file(dir.write("a.txt", "hello"));
  const auto before = file->identity();
  close_descriptor(others);
  EXPECT_EQ(source_fault_of([&] { expect_unchanged(*file, before); }), "no fault");
  dir.write("b.txt", "there");
  std::filesystem::rename(dir.file("b.txt"), dir.file("a.txt"));
  EXPECT_THAT(source_fault_of([&] { expect_unchanged(*file, before); }),
              HasSubstr("a.txt was removed or replaced while"));
  EXPECT_THAT(source_fault_of([&] { content_of(*file); }), HasSubstr("a.txt was removed or replaced while"));
  std::filesystem::remove(dir.file("a.txt"));
  EXPECT_THAT(source_fault_of([&] { expect_unchanged(*file, before); }),
              HasSubstr("a.txt was removed or replaced while"));
  EXPECT_THAT(source_fault_of([&] { content_of(*file); }), HasSubstr("a.txt was removed or replaced while"));
}

TEST(File, APrivateFileMustNotBeALinkOrWritableByOthers) {
  const ScratchDir dir;
  const auto path = dir.write("a.txt", "hello");
  ::chmod(path.c_str(), 0644);
  EXPECT_EQ(content_of(*open_private(path)), "hello");
  std::filesystem::create_symlink("a.txt", dir.file("link.txt"));
  const auto refused = HasSubstr("is a link, another user's file, or one that others may write to");
  EXPECT_THAT(source_fault_of([&] { open_private(dir.file("link.txt")); }), refused);
  for (const mode_t mode : {0664, 0646}) {
    ::chmod(path.c_str(), mode);
    EXPECT_THAT(source_fault_of([&] { open_private(path); }), refused) << mode;
  }
  ::chmod(path.c_str(), 0600);
  if (::chown(path.c_str(), 12345, 12345) != 0) return;  // Only root can do that.
  EXPECT_THAT(source_fault_of([&] { open_private(path); }), refused);
}

TEST(File, APrivateFileIsCheckedAgainWhenReopened) {
  const ScratchDir dir, others;
  const auto path = dir.write("a.txt", "hello");
  ::chmod(path.c_str(), 0600);
  const auto file = open_private(path);
  close_descriptor(others);
  EXPECT_EQ(content_of(*file), "hello");
  close_descriptor(others);
  ::chmod(path.c_str(), 0666);
  EXPECT_THAT(source_fault_of([&] { content_of(*file); }), HasSubstr("a.txt was removed or replaced while"));
  ::chmod(path.c_str(), 0600);
  std::filesystem::rename(path, dir.file("b.txt"));
  std::filesystem::create_symlink("b.txt", path);
  EXPECT_THAT(source_fault_of([&] { content_of(*file); }), HasSubstr("a.txt"));
}

TEST(File, ReopensFromAnotherWorkingFolderAndThroughAChangedLink) {
  const ScratchDir dir, others;
  dir.write("a.txt", "hello");
  dir.write("b.txt", "there");
  std::filesystem::create_symlink("a.txt", dir.file("link.txt"));
  const auto folder = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  const auto file = open_file("link.txt");
  std::filesystem::current_path(folder);
  close_descriptor(others);
  std::filesystem::remove(dir.file("link.txt"));
  std::filesystem::create_symlink("b.txt", dir.file("link.txt"));
  EXPECT_EQ(content_of(*file), "hello");
}

TEST(File, EscapesItsNameForTerminals) {
  const ScratchDir dir;
  EXPECT_THAT(open_file(dir.write("a\x1b[2J\n.txt", "hello"))->path(), HasSubstr("a\\x1b[2J\\n.txt"));
}

TEST(File, DetectsWrites) {
  MemoryFile file("a.txt", "hello");
  const auto before = file.identity();
  file.now.modified_ns += 1;
  EXPECT_THAT(source_fault_of([&] { expect_unchanged(file, before); }), HasSubstr("a.txt was written to while"));
}

}  // namespace
}  // namespace levada
