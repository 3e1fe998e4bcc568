// A job that is killed at random moments and resumes each time on another mesh, with another batch size and other
// readers, must use every sample exactly once. LEVADA_RESUMES sets the number of kills (20 unless set).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
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
#include "levada/feed/step_cursor.h"

namespace levada::test {
namespace {

constexpr std::int64_t save_every = 3;

int kill_count() {
  const char* text = std::getenv("LEVADA_RESUMES");
  return text != nullptr ? std::max(1, std::atoi(text)) : 20;
}

/// The data that all runs of a test read, and whether their steps are balanced.
struct Job {
  std::string path;
  CorpusOptions corpus;
  bool balances = false;
};

std::uint64_t hash_of(std::span<const std::int64_t> tokens) {
  return hash64(std::as_bytes(tokens));
}

/// Returns a hash of each sample of a batch: of each row, or of each segment of a packed row.
std::vector<std::uint64_t> samples_of(const Tree& batch, const Job& job) {
  const auto tokens = batch.tensor("tokens");
  const auto all = tokens.as<std::int64_t>();
  std::vector<std::uint64_t> samples;
  if (job.corpus.packing == Packing::documents) {
    const auto ends = batch.tensor("cu_seqlens").as<std::int32_t>();
    for (std::size_t i = 1; i < ends.size(); ++i) {
      const auto begin = static_cast<std::size_t>(ends[i - 1]), end = static_cast<std::size_t>(ends[i]);
      samples.push_back(hash_of(all.subspan(begin, end - begin)));
    }
    return samples;
  }
  const auto rows = static_cast<std::size_t>(tokens.shape()[0]);
  for (std::size_t row = 0; row < rows; ++row) {
    samples.push_back(hash_of(all.subspan(row * all.size() / rows, all.size() / rows)));
  }
  return samples;
}

/// Maps each sample's hash to its number, read directly from the corpus.
std::map<std::uint64_t, std::int64_t> numbers_of_samples(const Job& job) {
  auto corpus = Corpus::open({job.path}, job.corpus);
  std::map<std::uint64_t, std::int64_t> numbers;
  HeapMemory memory;
  for (std::int64_t number = 0; number < corpus.size().value(); ++number) {
    numbers.emplace(samples_of(corpus.gather(std::vector{number}, memory), job).at(0), number);
  }
  EXPECT_EQ(std::ssize(numbers), corpus.size().value()) << "samples differ";
  return numbers;
}

/// Counts how often one run has used each sample, in memory that the run shares with the test.
class Notebook {
 public:
  using Times = std::atomic<std::int64_t>;
  explicit Notebook(std::size_t samples)
      : samples_(samples),
        times_(static_cast<Times*>(
            ::mmap(nullptr, samples * sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Notebook() { ::munmap(static_cast<void*>(times_), samples_ * sizeof(Times)); }
  Notebook(const Notebook&) = delete;
  Notebook& operator=(const Notebook&) = delete;

  Times& operator[](std::int64_t sample) const { return times_[sample]; }
  void clear() const {
    for (std::size_t i = 0; i < samples_; ++i) times_[i] = 0;
  }

 private:
  std::size_t samples_;
  Times* times_;
};

struct Setting {
  std::string mesh;
  FeedOptions feed;
};

Balance any_balance(std::mt19937& random) {
  const std::int64_t max_tokens[] = {0, 600, 2000};
  return {.cost = SampleCost::parse(random() % 4 == 0 ? "tokens" : "flops(hidden=8)"),
          .sizes = random() % 2 == 0 ? PartSizes::any : PartSizes::equal,
          .max_tokens = max_tokens[random() % std::size(max_tokens)],
          .order = random() % 2 == 0 ? MicroOrder::as_read : MicroOrder::paired,
          .max_delay = static_cast<std::int64_t>(random() % 5)};
}

Setting any_setting(const Job& job, std::mt19937& random) {
  const char* const meshes[] = {"dp=2", "dp=1", "dp=3", "dp=2,tp=2", "dp=2,pp=2", "tp=2", "dp=4"};
  const char* const readers[] = {"one", "all", "dp"};
  Setting setting{meshes[random() % std::size(meshes)], {}};
  setting.feed.batch = 1 + random() % 3;
  setting.feed.readers = Readers::parse(readers[random() % std::size(readers)]);
  if (job.balances) {
    setting.feed.balance = any_balance(random);
  } else {
    setting.feed.divide = random() % 2 == 0 ? Divide::deal : Divide::split;
    setting.feed.tail = Tail::short_;
  }
  return setting;
}

/// The samples that a run which starts here has not used yet: those from `first` on, and the delayed ones.
struct Start {
  Bytes source;
  std::int64_t first = 0;
  std::vector<DelayedSample> delayed;

  bool is_left(std::int64_t sample) const {
    return sample >= first || std::ranges::find(delayed, sample, &DelayedSample::number) != delayed.end();
  }
};

Start saved_start(const std::string& state) {
  std::ifstream file(state, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (text.str().empty()) return {};
  auto cursor = StepCursor::decode(as_bytes(text.str()));
  const auto first = Cursor::decode(cursor.source).next;
  return {std::move(cursor.source), first, std::move(cursor.delayed)};
}

/// Saves the state on rank 0 after all ranks have agreed, as a training job does at a checkpoint.
void save(Engine& engine, const Batch& batch, const std::string& state) {
  agree(engine, {}, Deadline::after(std::chrono::seconds(20)), "saving");
  if (engine.info().rank != 0) return;
  AtomicFile file(state);
  file.write(batch.cursor);
  file.publish();
}

void run(const Job& job, const Setting& setting, const std::string& state, const Notebook& notebook,
         const std::map<std::uint64_t, std::int64_t>& numbers) {
  const Mesh mesh = Mesh::parse(setting.mesh);
  const auto start = saved_start(state);
  inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const bool notes = mesh.coordinate(rank, "tp") == 0 && mesh.coordinate(rank, "pp") == 0;
    auto options = setting.feed;
    const auto corpus = std::make_shared<Corpus>(Corpus::open({job.path}, job.corpus));
    if (!start.source.empty()) options.first_sample = corpus->resume(start.source);
    options.delayed = start.delayed;
    Feed feed(engine, mesh, layouts::gpt(), corpus, options);
    while (auto batch = feed.next()) {
      if (notes && batch->samples > 0) {
        for (const auto content : samples_of(batch->tree(), job)) ++notebook[numbers.at(content)];
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      const bool ends_step = batch->micro + 1 == batch->num_micro;
      if (ends_step && batch->step % save_every == save_every - 1) save(*engine, *batch, state);
    }
  });
}

/// Starts a run in a new process and kills it after `delay`. Returns whether the run ended before that.
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

/// Samples used after the state was saved are used again; those used before it, only once. At the end of the data, less
/// than a balanced step is left over.
void expect_each_once(const Notebook& notebook, std::int64_t size, const Start& begin, const std::optional<Start>& end,
                      const Setting& setting) {
  std::int64_t left = 0;
  for (std::int64_t sample = 0; sample < size; ++sample) {
    const std::int64_t times = notebook[sample];
    ASSERT_LE(times, begin.is_left(sample) ? 1 : 0) << "sample " << sample << " on " << setting.mesh;
    if (end && begin.is_left(sample) && !end->is_left(sample)) {
      ASSERT_EQ(times, 1) << "sample " << sample << " on " << setting.mesh;
    }
    if (begin.is_left(sample) && times == 0) ++left;
  }
  if (end) return;
  const auto step_samples = setting.feed.batch * Mesh::parse(setting.mesh).data_size();
  ASSERT_LT(left, setting.feed.balance ? step_samples : 1);
}

void expect_each_once_through_kills(const Job& job) {
  const auto numbers = numbers_of_samples(job);
  const auto size = std::ssize(numbers);
  const Notebook notebook(numbers.size());
  std::mt19937 random(3);
  int kills = 0, whole_epochs = 0;
  while (kills < kill_count()) {
    const auto state = job.path + ".state" + std::to_string(whole_epochs++);
    for (bool ended = false; !ended && kills < kill_count(); ++kills) {
      notebook.clear();
      const auto setting = any_setting(job, random);
      const auto begin = saved_start(state);
      ended = run_and_kill(std::chrono::microseconds(random() % 30'000),
                           [&] { run(job, setting, state, notebook, numbers); });
      expect_each_once(notebook, size, begin, ended ? std::nullopt : std::optional(saved_start(state)), setting);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

CorpusOptions corpus_options(std::int64_t sequence) {
  return {.sequence = sequence, .shuffle_seed = 11, .tokenizer = byte_tokenizer(), .cache_dir = scratch() + "/cache"};
}

TEST(Resume, EverySampleIsReadExactlyOnceDespiteKills) {
  expect_each_once_through_kills({make_corpus("resume.jsonl", 60), corpus_options(32)});
}

TEST(Resume, EverySampleOfBalancedStepsIsReadOnceDespiteKills) {
  std::mt19937 random(4);
  std::string lines;
  for (int document = 0; document < 600; ++document) {
    const auto length = random() % 16 == 0 ? 200 + random() % 300 : 8 + random() % 30;
    lines += "{\"text\":\"" + std::to_string(document) + std::string(length, 'x') + "\"}\n";
  }
  Job job{write_file("balanced.jsonl", lines), corpus_options(512), true};
  job.corpus.packing = Packing::documents;
  expect_each_once_through_kills(job);
}

}  // namespace
}  // namespace levada::test
