#include "levada/tokens/convert.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "levada/base/error.h"
#include "levada/base/private_files.h"
#include "levada/base/text.h"
#include "levada/tokens/tokenize.h"

namespace levada {
namespace {

/// Throws InvalidArgument unless the dtype holds all tokens.
void check_dtype(const ConvertOptions& options, DType dtype) {
  const auto& tokenizer = *options.tokenizer;
  auto largest = tokenizer.vocabulary_size() - 1;
  // The token that ends documents may be the only one that does not fit, and may not be used at all.
  if (largest > max_token(dtype) && tokenizer.end_of_document() == largest) --largest;
  largest = std::max(largest, options.end_of_document.value_or(0));
  if (largest <= max_token(dtype)) return;
  throw InvalidArgument(
      fmt::format("the tokens of {} go up to {}, and {} holds 0 to {}: choose a wider dtype (--dtype int32), or auto",
                  printable(tokenizer.name()), largest, dtype.name(), max_token(dtype)));
}

}  // namespace

Conversion convert_to_megatron(const std::vector<std::string>& from, const std::string& to,
                               const ConvertOptions& options) {
  const auto dtype = options.dtype.value_or(token_dtype(options.tokenizer->vocabulary_size()));
  check_dtype(options, dtype);
  struct OpenFile {
    std::unique_ptr<File> file;
    FileIdentity before;
  };
  std::vector<OpenFile> files;
  std::uint64_t total = 0;
  mode_t mode = readable_mode;
  const auto own = owner_of_new_files((std::filesystem::absolute(to).parent_path()).string());
  for (const auto& path : from) {
    if (!is_text(path, options.formats)) {
      throw InvalidArgument(
          fmt::format("{} is not a text that can be converted: {} can", printable(path), text_kinds(options.formats)));
    }
    auto file = options.open(path);
    const auto identity = file->identity();
    total += identity.size;
    mode &= identity.permissions;
    if (!own || own->group != identity.group) mode &= ~static_cast<mode_t>(S_IRWXG);
    files.push_back({std::move(file), identity});
  }
  MegatronWriter writer(to, {.dtype = dtype, .overwrite = options.overwrite, .mode = mode, .write = options.write});
  WorkTeam team(options.threads - 1);
  BadPlaces bad_lines;
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (options.text.skip_bad && files[i].before.size == 0) {
      bad_lines.add(from[i], whole_text());
      continue;
    }
    const auto reader = read_text(from[i], options.text, options.formats, options.open);
    TokenizeOptions how{.end_of_document = options.end_of_document, .team = &team};
    if (options.progress) how.progress = [&] { options.progress(before + reader->stored_bytes(), total); };
    tokenize(*reader, *options.tokenizer, writer, how);
    expect_unchanged(*files[i].file, files[i].before);
    bad_lines.add(from[i], reader->bad_lines());
    before += files[i].before.size;
  }
  writer.finish();
  return {.paths = writer.paths(),
          .dtype = dtype,
          .documents = writer.documents(),
          .sequences = writer.sequences(),
          .tokens = writer.tokens(),
          .bad_lines = std::move(bad_lines),
          .bytes_read = total,
          .bytes_written = writer.bytes()};
}

}  // namespace levada
