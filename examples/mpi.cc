// A training job on several hosts, started by mpirun or srun: mpirun -n 4 examples/mpi corpus.jsonl. Every rank is a
// replica. Levada moves its batches through shared memory inside a host, and over MPI between hosts.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "levada/corpus/corpus.h"
#include "levada/engine/choice.h"
#include "levada/engine/mpi/mpi.h"
#include "levada/feed/feed.h"

namespace {

void run(const char* path) {
  // Declared before everything that uses its engine, so it is destroyed last. It initializes and finalizes MPI.
  const levada::mpi::Job job = levada::mpi::join();
  const auto& engine = job.engine();
  if (engine->info().rank == 0) std::puts(levada::describe_engine(engine->info()).c_str());

  const auto mesh = levada::Mesh::parse("dp=" + std::to_string(engine->info().size));
  auto corpus = std::make_shared<levada::Corpus>(
      levada::Corpus::open({path}, {.sequence = 1024, .shuffle_seed = 7, .tokenizer = levada::byte_tokenizer()}));
  levada::Feed feed(engine, mesh, levada::layouts::gpt(), corpus, {.batch = 8});
  std::int64_t tokens = 0;
  while (auto batch = feed.next()) {
    tokens += static_cast<std::int64_t>(batch->tensor("tokens").as<std::int64_t>().size());  // here a step would train
  }
  std::printf("%s: %lld tokens in %lld steps\n", mesh.describe(engine->info().rank).c_str(),
              static_cast<long long>(tokens), static_cast<long long>(feed.end()->at.step));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: mpi CORPUS\n");
    return 2;
  }
  try {
    run(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi: %s\n", error.what());
    return 1;
  }
}
