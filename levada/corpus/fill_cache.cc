#include "levada/corpus/fill_cache.h"

#include "levada/corpus/file_opener.h"

namespace levada {

FilledCache fill_cache(const std::vector<std::string>& paths, const CorpusOptions& options) {
  FileOpener opener(options);
  FilledCache filled;
  std::vector<std::string> texts;
  for (const auto& source : sources_of(paths, options).sources) {
    const auto found = opener.expand(source.paths);
    for (const auto& path : found.files) {
      if (is_text(path, options.formats)) texts.push_back(path);
      else opener.expect_tokens(path);
    }
    for (const auto& [end, count] : found.left_out) filled.left_out[end] += count;
  }
  const auto cached = opener.tokenize(texts);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto& tokens = cached[i];
    ++filled.texts;
    filled.made += tokens.bytes_read > 0;
    filled.bytes_read += tokens.bytes_read;
    filled.bad_lines.add(texts[i], tokens.bad_lines);
  }
  if (opener.cache()) filled.dir = opener.cache()->folder().dir();
  return filled;
}

}  // namespace levada
