// The limit for `levada feed`: one process that cuts a corpus into the same batches and digests them, without sending
// anything. Prints its tokens a second, and the digests that every feed of the corpus must have.
#include <fmt/format.h>
#include <malloc.h>

#include <chrono>
#include <iostream>

#include "levada/base/error.h"
#include "levada/cli/field_digests.h"
#include "levada/corpus/corpus.h"

namespace levada {
namespace {

void run(const std::string& path, std::int64_t batch, std::int64_t sequence) {
  auto corpus = Corpus::open({path}, {.sequence = sequence, .tokenizer = is_text(path) ? byte_tokenizer() : nullptr});
  HeapMemory memory;
  // Makes batches reuse the same pages, as an engine's blocks do. Otherwise first touch would take most of the time.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  cli::FieldDigests content;
  std::int64_t samples = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (auto tree = corpus.read(samples, batch, memory)) {
    content.add(*tree);
    samples += batch;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::string digests;
  for (const auto& field : content.fields()) {
    digests += fmt::format("{}\"{}\": \"{}\"", digests.empty() ? "" : ", ", field.name, field.digest);
  }
  std::cout << fmt::format("{{\"tokens\": {}, \"seconds\": {}, \"tokens_per_s\": {}, \"digests\": {{{}}}}}\n",
                           samples * sequence, seconds.count(),
                           static_cast<double>(samples * sequence) / seconds.count(), digests);
}

}  // namespace
}  // namespace levada

int main(int count, char** arguments) try {
  if (count != 4) {
    std::cerr << "usage: cut_and_digest CORPUS BATCH SEQUENCE\n";
    return 2;
  }
  levada::run(arguments[1], std::atoll(arguments[2]), std::atoll(arguments[3]));
  return 0;
} catch (const levada::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
