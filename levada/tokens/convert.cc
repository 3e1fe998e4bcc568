#include "levada/tokens/convert.h"

#include <fmt/format.h>

#include <numeric>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/tokens/tokenize.h"

namespace levada {

Conversion convert_to_megatron(const std::vector<std::string>& from, const std::string& to,
                               const ConvertOptions& options) {
  std::vector<std::uint64_t> sizes;
  for (const auto& path : from) {
    if (!is_text(path, options.formats)) {
      throw InvalidArgument(
          fmt::format("{} is no text that can be converted: {} can", printable(path), text_kinds(options.formats)));
    }
    sizes.push_back(options.open(path)->identity().size);
  }
  const auto total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  const auto dtype = options.dtype.value_or(token_dtype(options.tokenizer->vocabulary_size()));
  MegatronWriter writer(to, {.dtype = dtype, .overwrite = options.overwrite, .write = options.write});
  WorkTeam team(options.threads - 1);
  std::int64_t bad_lines = 0;
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto reader = read_text(from[i], options.text, options.formats, options.open);
    TokenizeOptions how{.end_of_document = options.end_of_document, .team = &team};
    if (options.progress) how.progress = [&] { options.progress(before + reader->stored_bytes(), total); };
    tokenize(*reader, *options.tokenizer, writer, how);
    bad_lines += reader->bad_lines();
    before += sizes[i];
  }
  writer.finish();
  return {.paths = writer.paths(),
          .dtype = dtype,
          .documents = writer.documents(),
          .sequences = writer.sequences(),
          .tokens = writer.tokens(),
          .bad_lines = bad_lines,
          .bytes_read = total,
          .bytes_written = writer.bytes()};
}

}  // namespace levada
