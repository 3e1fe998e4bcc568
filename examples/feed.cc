// One rank of a training job that gets its batches from Levada. Start as many as the mesh has ranks, under torchrun,
// SLURM or mpirun: examples/feed corpus.jsonl dp=2,tp=2. Started without a launcher and without a mesh, it is a world
// of one rank.
#include <cstdio>
#include <exception>
#include <memory>

#include "levada/corpus/corpus.h"
#include "levada/feed/feed.h"
#include "levada/launch/launch.h"

namespace {

void run(const char* path, const char* axes) {
  auto engine = levada::launch::join();
  const auto mesh = levada::Mesh::parse(axes);
  auto corpus = std::make_shared<levada::Corpus>(
      levada::Corpus::open({path}, {.sequence = 1024, .shuffle_seed = 7, .tokenizer = levada::byte_tokenizer()}));

  levada::Feed feed(engine, mesh, levada::layouts::gpt(), corpus, {.batch = 8});
  std::int64_t tokens = 0;
  while (auto batch = feed.next()) {  // ends on every rank at the same step
    const auto seen = batch->tensor("tokens").as<std::int64_t>();
    tokens += static_cast<std::int64_t>(seen.size());  // here a step would train; destroying `batch` returns its memory
  }
  std::printf("%s: %lld tokens in %lld steps\n", mesh.describe(engine->info().rank).c_str(),
              static_cast<long long>(tokens), static_cast<long long>(feed.end()->at.step));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: feed CORPUS [MESH]\n");
    return 2;
  }
  try {
    run(argv[1], argc == 3 ? argv[2] : "");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "feed: %s\n", error.what());
    return 1;
  }
}
