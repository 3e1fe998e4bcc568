#include "levada/sources/megatron_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <random>

#include "levada/base/fault_testing.h"
#include "levada/sources/megatron_testing.h"
#include "levada/sources/scratch_dir_testing.h"
#include "levada/sources/token_file.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::string> names_in(const ScratchDir& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

/// Writes three documents; the first one has two sequences.
void write_some(MegatronWriter& writer) {
  const std::vector<std::int64_t> tokens = {1, 2, 3, 4, 5};
  writer.append(std::span(tokens).first(2));
  writer.end_sequence();
  writer.append(std::span(tokens).subspan(2, 1));
  writer.append(std::span(tokens).subspan(3, 1));
  writer.end_document();
  writer.end_sequence();
  writer.end_document();
  writer.append(std::span(tokens).last(1));
}

template <typename T>
void expect_written(DType dtype, std::uint8_t code) {
  const ScratchDir dir;
  MegatronWriter writer(dir.file("a"), {.dtype = dtype});
  write_some(writer);
  EXPECT_THAT(names_in(dir), UnorderedElementsAre(".a.bin.partial", ".a.idx.partial"));
  writer.finish();
  EXPECT_THAT(names_in(dir), UnorderedElementsAre("a.bin", "a.idx"));
  const auto index = raw_index(code, sizeof(T), {2, 2, 0, 1}, {0, 2, 3, 4});
  EXPECT_EQ(content(dir.file("a.idx")), index.bytes()) << dtype.name();
  EXPECT_EQ(content(dir.file("a.bin")), raw_bin<T>({1, 2, 3, 4, 5})) << dtype.name();
  EXPECT_EQ(writer.bytes(), index.bytes().size() + 5 * sizeof(T));
  EXPECT_EQ(writer.tokens(), 5);
  EXPECT_EQ(writer.sequences(), 4);
  EXPECT_EQ(writer.documents(), 3);
}

TEST(MegatronWriter, FollowsTheFormat) {
  expect_written<std::uint8_t>(dtypes::uint8, 1);
  expect_written<std::int8_t>(dtypes::int8, 2);
  expect_written<std::int16_t>(dtypes::int16, 3);
  expect_written<std::int32_t>(dtypes::int32, 4);
  expect_written<std::int64_t>(dtypes::int64, 5);
  expect_written<std::uint16_t>(dtypes::uint16, 8);
}

TEST(MegatronWriter, RejectsTokensThatDoNotFit) {
  const ScratchDir dir;
  for (const auto& [dtype, most] : {std::pair{dtypes::uint8, std::int64_t{255}},
                                    {dtypes::int8, 127},
                                    {dtypes::int16, 32767},
                                    {dtypes::uint16, 65535},
                                    {dtypes::int32, INT32_MAX}}) {
    MegatronWriter writer(dir.file("a"), {.dtype = dtype});
    const auto append = [&](std::int64_t token) { writer.append(std::span(&token, 1)); };
    append(most);
    EXPECT_EQ(fault_of([&, largest = most] { append(largest + 1); }),
              "InvalidArgument: token " + std::to_string(most + 1) + " does not fit in " + dtype.name() +
                  ", which holds 0 to " + std::to_string(most) + ": choose a wider dtype");
    EXPECT_THAT(fault_of([&] { append(-1); }), HasSubstr("token -1 does not fit"));
  }
  EXPECT_THAT(fault_of([&] { MegatronWriter(dir.file("a"), {.dtype = dtypes::float32}); }),
              HasSubstr("float32 is not a type of tokens"));
  EXPECT_THAT(fault_of([&] { MegatronWriter(dir.file(""), {}); }), HasSubstr("does not name a data set"));
}

TEST(MegatronWriter, DividesASequenceThatExceedsTheLengthField) {
  const ScratchDir dir;
  const auto discard = [](int fd, const void* bytes, std::size_t size) -> ssize_t {
    return size == std::size_t{1} << 20 ? static_cast<ssize_t>(size) : ::write(fd, bytes, size);
  };
  MegatronWriter writer(dir.file("a"), {.dtype = dtypes::uint8, .write = discard});
  const std::vector<std::int32_t> tokens(std::size_t{1} << 22, 'x');
  for (int i = 0; i < 512; ++i) writer.append(tokens);
  writer.append(std::span(tokens).first(3));
  writer.finish();
  EXPECT_EQ(content(dir.file("a.idx")), raw_index(1, 1, {INT32_MAX, 4}, {0, 2}).bytes());
}

TEST(MegatronWriter, DoesNotOverwriteUnlessAllowed) {
  const ScratchDir dir;
  for (const std::string name : {"a.bin", "a.idx"}) {
    dir.write(name, "before");
    EXPECT_EQ(
        fault_of([&] { MegatronWriter(dir.file("a"), {}); }),
        "InvalidArgument: " + dir.file(name) + " already exists: choose another name, or overwrite it (--overwrite)");
    EXPECT_THAT(names_in(dir), ElementsAre(name));
    MegatronWriter writer(dir.file("a"), {.overwrite = true});
    write_some(writer);
    writer.finish();
    EXPECT_EQ(TokenFile(dir.file("a"), {}).contents().tokens, 5);
    std::filesystem::remove(dir.file("a.bin"));
    std::filesystem::remove(dir.file("a.idx"));
  }
  MegatronWriter writer(dir.file("a"), {});
  write_some(writer);
  dir.write("a.bin", "somebody else's");
  EXPECT_THAT(fault_of([&] { writer.finish(); }), HasSubstr("a.bin already exists"));
  EXPECT_EQ(content(dir.file("a.bin")), "somebody else's");
}

TEST(MegatronWriter, LeavesNoFileOnAFullDisk) {
  const ScratchDir dir;
  {
    MegatronWriter writer(dir.file("a"), {});
    write_some(writer);
    writer.finish();
  }
  const auto bin = content(dir.file("a.bin")), idx = content(dir.file("a.idx"));
  for (std::size_t room = 0; room < bin.size() + idx.size(); room += 3) {
    auto left = room;
    const auto write = [&](int fd, const void* bytes, std::size_t size) -> ssize_t {
      if (left == 0) {
        errno = ENOSPC;
        return -1;
      }
      const auto done = ::write(fd, bytes, std::min(size, left));
      left -= static_cast<std::size_t>(done);
      return done;
    };
    EXPECT_THAT(fault_of([&] {
                  MegatronWriter writer(dir.file("a"), {.dtype = dtypes::int32, .overwrite = true, .write = write});
                  write_some(writer);
                  writer.finish();
                }),
                HasSubstr("the disk is full, and nothing of it is left there"))
        << room;
    EXPECT_THAT(names_in(dir), UnorderedElementsAre("a.bin", "a.idx"));
    EXPECT_EQ(content(dir.file("a.bin")), bin);
    EXPECT_EQ(content(dir.file("a.idx")), idx);
  }
}

/// Overwrites data sets forever: the same number of bytes, but other tokens and lengths each time.
[[noreturn]] void write_for_ever(const std::string& path) {
  for (std::int64_t number = 1;; number = number % 4 + 1) {
    MegatronWriter writer(path, {.dtype = dtypes::uint8, .overwrite = true});
    const std::vector<std::int64_t> tokens(static_cast<std::size_t>(number * 12), number);
    for (std::int64_t document = 0; document < 12 / number; ++document) {
      writer.append(tokens);
      writer.end_document();
    }
    writer.finish();
  }
}

/// Returns whether the data set exists; if so, all of it must come from one write.
bool is_there_and_whole(const std::string& path) {
  try {
    const TokenFile file(path, {});
    const auto count = static_cast<std::size_t>(file.contents().tokens);
    std::vector<std::int64_t> tokens(count - 1), labels(count - 1);
    TokenWriter to({tokens}, {labels});
    ReadState state;
    file.read(0, static_cast<std::int64_t>(count), to, state);
    file.check();
    EXPECT_EQ(tokens, std::vector<std::int64_t>(count - 1, tokens.front()));
    return true;
  } catch (const SourceError& error) {
    // While it is being replaced, the data set may be missing or be found to have been replaced, but never damaged.
    // Some file systems show the time of a removal before the link count.
    EXPECT_THAT(error.what(), ::testing::AnyOf(HasSubstr("No such file"), HasSubstr("was removed or replaced"),
                                               HasSubstr("or another name")));
    return false;
  }
}

TEST(MegatronWriter, PublishesACompleteDataSetOrNone) {
  const ScratchDir dir;
  std::mt19937 random(7);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  // On a busy machine, the first data set may take a while.
  const auto late = now() + std::chrono::seconds(30);
  bool is_seen = false;
  for (int round = 0; round < 20; ++round) {
    const auto child = ::fork();
    if (child == 0) write_for_ever(dir.file("a"));
    while (!is_seen && now() < late) is_seen = is_there_and_whole(dir.file("a"));
    const auto end = now() + std::chrono::microseconds(random() % 20'000);
    while (now() < end) is_there_and_whole(dir.file("a"));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  EXPECT_TRUE(is_seen);
  MegatronWriter writer(dir.file("a"), {.overwrite = true});
  write_some(writer);
  writer.finish();
  EXPECT_THAT(names_in(dir), UnorderedElementsAre("a.bin", "a.idx"));
}

TEST(MegatronWriter, ExcludesOtherWritersOfItsName) {
  const ScratchDir dir;
  MegatronWriter writer(dir.file("a"), {});
  EXPECT_THAT(fault_of([&] { MegatronWriter(dir.file("a"), {}); }), HasSubstr("another process is writing"));
  write_some(writer);
  writer.finish();
  EXPECT_EQ(TokenFile(dir.file("a"), {}).contents().documents, 3);
}

}  // namespace
}  // namespace levada
