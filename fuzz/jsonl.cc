// Reads arbitrary bytes as a .jsonl file, plain and compressed. The documents must not depend on how many bytes arrive
// at a time.
#include <cstdlib>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/utf8.h"
#include "levada/tokens/text_reader.h"

namespace {

/// Returns all documents, followed by the text of the error if one ends the reading.
std::vector<std::string> read(const std::string& path, std::string_view content, const std::string& field,
                              bool skip_bad, std::size_t at_once) {
  const auto file = std::make_shared<levada::MemoryFile>(path, std::string(content));
  file->max_at_once = at_once;
  std::vector<std::string> documents;
  try {
    const auto reader = levada::read_text(file, file->path(), {.text_field = field, .skip_bad = skip_bad});
    for (levada::Texts texts; reader->read(texts);) {
      if (texts.size() == 0 || texts.ends.back() != texts.bytes.size()) std::abort();
      for (std::size_t i = 0; i < texts.size(); ++i) {
        if (!levada::is_utf8(std::string(texts[i]))) std::abort();
        documents.emplace_back(texts[i]);
      }
    }
  } catch (const levada::SourceError& error) {
    documents.emplace_back(error.what());
  }
  return documents;
}

}  // namespace

/// Input: a byte of options (whether bad lines are skipped, how the file is compressed, whether it is a .txt, whether
/// the text is in a nested object); then the file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr const char* compressions[] = {"", ".gz", ".zst", ""};
  const auto path = std::string((data[0] & 8) != 0 ? "fuzz.txt" : "fuzz.jsonl") + compressions[data[0] >> 1 & 3];
  const bool skip_bad = (data[0] & 1) != 0;
  const std::string field = (data[0] & 16) != 0 ? "a.text" : "text";
  const auto documents = read(path, content, field, skip_bad, SIZE_MAX);
  // The position in an error of a compressed file depends on how its bytes were read.
  if (!path.ends_with(".gz") && !path.ends_with(".zst") && read(path, content, field, skip_bad, 3) != documents)
    std::abort();
  return 0;
}
