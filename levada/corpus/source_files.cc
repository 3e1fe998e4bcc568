#include "levada/corpus/source_files.h"

#include <fmt/format.h>

#include <algorithm>

namespace levada {

SourceFiles::SourceFiles(
    const std::vector<std::string>& paths,
    const std::function<std::unique_ptr<const TokenFile>(const std::string&, std::int64_t)>& open) {
  for (const auto& path : paths) {
    auto file = open(path, tokens());
    const auto& contents = file->contents();
    token_begins_.push_back(token_begins_.back() + contents.tokens);
    document_begins_.push_back(document_begins_.back() + contents.documents);
    bad_lines_ += contents.bad_lines;
    index_bytes_ += file->index_bytes();
    files_.push_back(std::move(file));
  }
}

void SourceFiles::add_to(Digest& digest) const {
  for (const auto& file : files_) {
    const auto& contents = file->contents();
    digest.update(
        fmt::format("{} {} {} {};", contents.digest, contents.tokens, contents.documents, contents.bad_lines));
  }
}

SourceFiles::Place SourceFiles::find(const std::vector<std::int64_t>& begins, std::int64_t number) {
  // A file may hold nothing: the last that begins here has it.
  const auto after = std::ranges::upper_bound(begins, number);
  return {static_cast<std::size_t>(after - begins.begin()) - 1, number - *std::prev(after)};
}

}  // namespace levada
