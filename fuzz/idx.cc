// Reads arbitrary bytes as an .idx of Megatron-LM, with a .bin of any size. An accepted index must stay inside the
// .bin, and reading it at once and token by token must return the same.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "levada/base/error.h"
#include "levada/sources/megatron_index.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/token_file.h"

namespace {

using Tokens = std::vector<std::int64_t>;
constexpr std::int64_t max_tokens = 4096;

void check(bool holds) {
  if (!holds) std::abort();
}

/// Returns tokens [position, position + count), the last of which is only a label. Returns nothing if one of them is
/// negative.
Tokens read(const levada::TokenFile& file, std::int64_t position, std::int64_t count) {
  Tokens tokens(static_cast<std::size_t>(count - 1)), labels(tokens.size());
  levada::TokenWriter to({tokens}, {labels});
  levada::ReadState state;
  try {
    file.read(position, position + count, to, state);
  } catch (const levada::SourceError&) {
    return {};
  }
  check(to.missing() == 0);
  check(std::equal(tokens.begin() + (tokens.empty() ? 0 : 1), tokens.end(), labels.begin()));
  return tokens;
}

void check_index(const levada::MegatronIndex& index, std::int64_t in_documents, std::uint64_t bin_bytes) {
  check(in_documents == index.tokens());
  for (std::int64_t position = 0; position < std::min(index.tokens(), max_tokens); ++position) {
    const auto place = index.runs.find(position);
    check(place.tokens > 0 && place.byte + index.dtype.bytes(static_cast<std::size_t>(place.tokens)) <= bin_bytes);
  }
}

void check_reads(const levada::TokenFile& file) {
  const auto count = std::min(file.contents().tokens, max_tokens);
  if (count < 2) return;
  const auto all = read(file, 0, count);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto alone = read(file, static_cast<std::int64_t>(i), 2);
    check(alone.size() == 1 && alone[0] == all[i]);
  }
}

}  // namespace

/// Input: two bytes, the size of the .bin; then the .idx.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::string bin(data[0] | std::size_t{data[1]} << 8, '\0');
  for (std::size_t i = 0; i < bin.size(); ++i) bin[i] = static_cast<char>(i * 37 % 128);
  const std::string idx(reinterpret_cast<const char*>(data) + 2, size - 2);
  try {
    std::int64_t in_documents = 0;
    const auto index =
        levada::read_megatron_index(levada::MemoryFile("a.idx", idx), levada::MemoryFile("a.bin", bin),
                                    {.on_document = [&](std::int64_t tokens) { in_documents += tokens; }});
    check_index(index, in_documents, bin.size());
    std::int64_t read_again = 0;
    levada::read_documents(levada::MemoryFile("a.idx", idx), index,
                           {.on_document = [&](std::int64_t tokens) { read_again += tokens; }});
    check(read_again == in_documents);
    check_reads(levada::TokenFile("a.bin", {.open = levada::open_from({{"a.idx", idx}, {"a.bin", bin}})}));
  } catch (const levada::SourceError&) {
  }
  return 0;
}
