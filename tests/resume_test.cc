// A job that is killed at random moments and goes on each time on another mesh, with another batch size, other readers:
// every sample exactly once. LEVADA_RESUMES says how many kills (20 unless set).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <thread>

#include "command_run.h"
#include "levada/base/atomic_file.h"
#include "levada/base/hash.h"
#include "levada/corpus/corpus.h"
#include "levada/corpus/cursor.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/feed/feed.h"

namespace levada::test {
namespace {

constexpr std::int64_t sequence = 32;
constexpr std::int64_t save_every = 3;

int kill_count() {
  const char* text = std::getenv("LEVADA_RESUMES");
  return text != nullptr ? std::max(1, std::atoi(text)) : 20;
}

CorpusOptions corpus_options() {
  return {.sequence = sequence, .shuffle_seed = 11, .cache_dir = scratch() + "/cache"};
}

std::uint64_t hash_of(std::span<const std::int64_t> tokens) {
  return hash64(std::as_bytes(tokens));
}

/// Content of every sample, as a plain reader of the corpus sees it.
std::vector<std::uint64_t> expected_samples(const std::string& path) {
  auto corpus = Corpus::open({path}, corpus_options());
  std::vector<std::uint64_t> samples;
  HeapMemory memory;
  while (auto sample = corpus.read(static_cast<std::int64_t>(samples.size()), 1, memory)) {
    samples.push_back(hash_of(sample->tensor("tokens").as<std::int64_t>()));
  }
  return samples;
}

/// For each sample how often one run has used it, and what it was: memory that the run shares with the test.
class Notebook {
 public:
  struct Entry {
    std::atomic<std::int64_t> times;
    std::atomic<std::uint64_t> content;
  };
  explicit Notebook(std::size_t samples)
      : samples_(samples),
        entries_(static_cast<Entry*>(
            ::mmap(nullptr, samples * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Notebook() { ::munmap(static_cast<void*>(entries_), samples_ * sizeof(Entry)); }
  Notebook(const Notebook&) = delete;
  Notebook& operator=(const Notebook&) = delete;

  Entry& operator[](std::int64_t sample) const { return entries_[sample]; }
  void clear() const {
    for (std::size_t i = 0; i < samples_; ++i) entries_[i].times = 0;
  }

 private:
  std::size_t samples_;
  Entry* entries_;
};

struct Setting {
  std::string mesh;
  FeedOptions feed;
};

Setting any_setting(std::mt19937& random) {
  const char* const meshes[] = {"dp=2", "dp=1", "dp=3", "dp=2,tp=2", "dp=2,pp=2", "tp=2", "dp=4"};
  const char* const readers[] = {"one", "all", "dp"};
  Setting setting{meshes[random() % std::size(meshes)], {}};
  setting.feed.batch = 1 + random() % 3;
  setting.feed.divide = random() % 2 == 0 ? Divide::deal : Divide::split;
  setting.feed.tail = Tail::short_;
  setting.feed.readers = Readers::parse(readers[random() % std::size(readers)]);
  return setting;
}

std::int64_t saved_sample(const std::string& state) {
  std::ifstream file(state, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str().empty() ? 0 : Cursor::decode(as_bytes(text.str())).next;
}

/// Every few steps all ranks come together and the state is saved, as a training job does with its checkpoints.
void save(Engine& engine, const Batch& batch, const std::string& state) {
  agree(engine, {}, Deadline::after(std::chrono::seconds(20)), "saving");
  if (engine.info().rank != 0) return;
  AtomicFile file(state);
  file.write(batch.cursor);
  file.publish();
}

void run(const Setting& setting, const std::string& path, const std::string& state, const Notebook& notebook) {
  const Mesh mesh = Mesh::parse(setting.mesh);
  const auto first = saved_sample(state);
  inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank, data = mesh.coordinate(rank, "dp");
    const bool notes = mesh.coordinate(rank, "tp") == 0 && mesh.coordinate(rank, "pp") == 0;
    auto options = setting.feed;
    options.first_sample = first;
    Feed feed(engine, mesh, layouts::gpt(), std::make_shared<Corpus>(Corpus::open({path}, corpus_options())), options);
    while (auto batch = feed.next()) {
      const auto begin = first + (batch->step * mesh.axis_size("dp") + data) * options.batch;
      for (std::int64_t row = 0; notes && row < batch->samples; ++row) {
        auto& entry = notebook[begin + row];
        entry.content = hash_of(batch->tensor("tokens").slice(0, row, row + 1).as<std::int64_t>());
        ++entry.times;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (batch->step % save_every == save_every - 1) save(*engine, *batch, state);
    }
  });
}

/// Starts a run in a process of its own and kills it after `delay`; whether it came to its end before.
bool run_and_kill(std::chrono::microseconds delay, const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      std::cerr << error.what() << '\n';
      ::_exit(1);
    }
    ::_exit(0);
  }
  std::this_thread::sleep_for(delay);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFEXITED(status);
}

TEST(Resume, GivesEverySampleExactlyOnceHoweverOftenAJobIsKilled) {
  const auto path = make_corpus("resume.jsonl", 60);
  const auto expected = expected_samples(path);
  const auto size = static_cast<std::int64_t>(expected.size());
  const Notebook notebook(expected.size());
  std::mt19937 random(3);
  int kills = 0, whole_epochs = 0;
  while (kills < kill_count()) {
    const auto state = scratch() + "/state" + std::to_string(whole_epochs++);
    for (bool ended = false; !ended && kills < kill_count(); ++kills) {
      notebook.clear();
      const auto setting = any_setting(random);
      const auto begin = saved_sample(state);
      ended = run_and_kill(std::chrono::microseconds(random() % 30'000), [&] { run(setting, path, state, notebook); });
      // What was used after the state was saved is used again; what was used before, once.
      const auto end = ended ? size : saved_sample(state);
      for (std::int64_t sample = begin; sample < end; ++sample) {
        ASSERT_EQ(notebook[sample].times, 1) << "sample " << sample << " on " << setting.mesh;
        ASSERT_EQ(notebook[sample].content, expected[static_cast<std::size_t>(sample)]) << "sample " << sample;
      }
    }
  }
}

}  // namespace
}  // namespace levada::test
