// The files of one source.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/base/hash.h"
#include "levada/sources/token_file.h"

namespace levada {

/// Opened files in their order. Moving it leaves the files where they are.
class SourceFiles {
 public:
  /// `open` is given each path and the number of tokens before it.
  SourceFiles(const std::vector<std::string>& paths,
              const std::function<std::unique_ptr<const TokenFile>(const std::string&, std::int64_t)>& open);

  /// Where one of the tokens, or documents, of all files is: in file `index`, as its number `at`.
  struct Place {
    std::size_t index = 0;
    std::int64_t at = 0;
  };
  Place token(std::int64_t position) const { return find(token_begins_, position); }
  Place document(std::int64_t number) const { return find(document_begins_, number); }

  const TokenFile& operator[](std::size_t index) const { return *files_[index]; }
  std::int64_t tokens() const { return token_begins_.back(); }
  std::int64_t documents() const { return document_begins_.back(); }
  std::int64_t bad_lines() const { return bad_lines_; }
  /// Bytes read to index them.
  std::uint64_t index_bytes() const { return index_bytes_; }
  /// Adds what the files hold, whatever their names.
  void add_to(Digest& digest) const;

 private:
  static Place find(const std::vector<std::int64_t>& begins, std::int64_t number);

  std::vector<std::unique_ptr<const TokenFile>> files_;
  std::vector<std::int64_t> token_begins_ = {0}, document_begins_ = {0};  ///< of each file, and the end
  std::int64_t bad_lines_ = 0;
  std::uint64_t index_bytes_ = 0;
};

}  // namespace levada
