#include "levada/corpus/source_files.h"

#include <fmt/format.h>

#include <algorithm>

namespace levada {

SourceFiles::SourceFiles(std::vector<OpenedFile> files) {
  for (auto& file : files) {
    bad_lines_.add(file.path, file.bad_lines);
    if (!file.tokens) continue;
    const auto& contents = file.tokens->contents();
    token_begins_.push_back(token_begins_.back() + contents.tokens);
    documents_ += contents.documents;
    stored_documents_ += contents.stored_documents;
    prepare_bytes_ += file.text_bytes + file.tokens->index_bytes();
    files_.push_back(std::move(file.tokens));
  }
}

bool SourceFiles::is_remote() const {
  return std::ranges::any_of(files_, [](const auto& file) { return is_url(file->path()); });
}

void SourceFiles::add_to(Digest& digest) const {
  for (const auto& file : files_) {
    const auto& contents = file->contents();
    digest.update(fmt::format("{} {} {};", contents.digest, contents.tokens, contents.documents));
  }
}

SourceFiles::Place SourceFiles::token(std::int64_t position) const {
  // Files may be empty, so the last one that begins here has the token.
  const auto after = std::ranges::upper_bound(token_begins_, position);
  return {static_cast<std::size_t>(after - token_begins_.begin()) - 1, position - *std::prev(after)};
}

}  // namespace levada
