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
    document_begins_.push_back(document_begins_.back() + contents.documents);
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

SourceFiles::Place SourceFiles::find(const std::vector<std::int64_t>& begins, std::int64_t number) {
  // Files may be empty, so the last one that begins here has the token or document.
  const auto after = std::ranges::upper_bound(begins, number);
  return {static_cast<std::size_t>(after - begins.begin()) - 1, number - *std::prev(after)};
}

}  // namespace levada
