// Any bytes as a .jsonl file: indexed, read in two ways that must agree, and read again after the bytes have changed.
#include <cstdlib>
#include <string>

#include "levada/base/error.h"
#include "levada/corpus/corpus.h"
#include "levada/sources/memory_file_testing.h"

namespace {

std::vector<std::int64_t> tokens_of(levada::Corpus& corpus, std::int64_t first, std::int64_t count) {
  levada::HeapMemory memory;
  const auto batch = corpus.read(first, count, memory).value();
  const auto span = batch.tensor("tokens").as<std::int64_t>();
  return {span.begin(), span.end()};
}

void check_reads(levada::Corpus& corpus) {
  const auto all = tokens_of(corpus, 0, corpus.sequences());
  std::vector<std::int64_t> alone;
  for (std::int64_t i = 0; i < corpus.sequences(); ++i) {
    const auto tokens = tokens_of(corpus, i, 1);
    alone.insert(alone.end(), tokens.begin(), tokens.end());
  }
  if (all != alone) std::abort();
}

}  // namespace

/// Two bytes of options (sequence; bad lines left out, documents packed), the file, and behind a byte 0xfe what stands
/// in its place later.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto content = input.substr(0, input.find('\xfe'));
  const auto later = input.substr(std::min(input.size(), content.size() + 1));
  levada::MemoryFile* file = nullptr;
  levada::CorpusOptions options{.sequence = 1 + data[0],
                                .packing = (data[1] & 2) != 0 ? levada::Packing::best_fit : levada::Packing::cut,
                                .skip_bad = (data[1] & 1) != 0,
                                .cache = false};
  options.open = [&](const std::string& path) {
    auto made = std::make_unique<levada::MemoryFile>(path, std::string(content));
    file = made.get();
    return made;
  };
  try {
    auto corpus = levada::Corpus::open({"fuzz.jsonl"}, options);
    check_reads(corpus);
    file->content = later;
    check_reads(corpus);
  } catch (const levada::InvalidArgument&) {
  } catch (const levada::SourceError&) {
  }
  return 0;
}
