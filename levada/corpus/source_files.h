// The files of one source.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "levada/base/hash.h"
#include "levada/sources/token_file.h"
#include "levada/tokens/bad_lines.h"

namespace levada {

/// One file and, if it was text, the result of tokenizing it.
struct OpenedFile {
  std::string path = {};                    ///< as given
  std::unique_ptr<const TokenFile> tokens;  ///< null for an empty text that is skipped
  BadLines bad_lines = {};                  ///< skipped lines of the text
  std::uint64_t text_bytes = 0;             ///< bytes of text read to tokenize it
};

/// Opened files in their order. Moving it does not move the files.
class SourceFiles {
 public:
  explicit SourceFiles(std::vector<OpenedFile> files);

  /// The position of a token: number `at` in file `index`.
  struct Place {
    std::size_t index = 0;
    std::int64_t at = 0;
  };
  Place token(std::int64_t position) const;

  const TokenFile& operator[](std::size_t index) const { return *files_[index]; }
  std::size_t size() const { return files_.size(); }
  std::int64_t tokens() const { return token_begins_.back(); }
  std::int64_t documents() const { return documents_; }
  /// Returns the number of documents in the files, of which documents() are in the part of the split.
  std::int64_t stored_documents() const { return stored_documents_; }
  const BadPlaces& bad_lines() const { return bad_lines_; }
  /// Returns the bytes of text and of indexes read before the first sample.
  std::uint64_t prepare_bytes() const { return prepare_bytes_; }
  /// Returns whether any of the files has a URL.
  bool is_remote() const;
  /// Adds the files' content, independent of their names.
  void add_to(Digest& digest) const;

 private:
  std::vector<std::unique_ptr<const TokenFile>> files_;
  std::vector<std::int64_t> token_begins_ = {0};  ///< start of each file, and the end
  std::int64_t documents_ = 0, stored_documents_ = 0;
  BadPlaces bad_lines_;
  std::uint64_t prepare_bytes_ = 0;
};

}  // namespace levada
