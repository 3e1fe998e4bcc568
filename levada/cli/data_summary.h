// A summary of a file of documents.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/report/length_histogram.h"
#include "levada/sources/file.h"
#include "levada/tensor/dtype.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"

namespace levada::cli {

struct SummaryOptions {
  std::int64_t sample = 0;  ///< index of the document to show
  TextOptions text = {};
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  ///< needed for text
  std::vector<TextFormat> formats = {};
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// The beginning of one document.
struct DocumentSample {
  std::int64_t document = 0, tokens = 0;
  bool is_text = false;
  std::string text;                  ///< UTF-8, if it is text
  std::vector<std::string> numbers;  ///< its tokens, if it is not text
};

struct DataSummary {
  std::string format;  ///< "text" or "megatron"
  std::vector<std::string> paths;
  DType dtype;
  std::int64_t documents = 0, sequences = 0, tokens = 0;
  BadPlaces bad_lines = {};
  std::uint64_t bytes = 0;  ///< total size of all files
  bool has_modes = false;
  report::LengthHistogram lengths;  ///< document lengths in tokens
  DocumentSample sample;
};

/// Reads a whole text file, or a whole .idx and, unless the tokenizer is that of bytes, also its .bin. In a text,
/// tokens count as in a feed, including the token that ends each document that is not empty. Throws SourceError if a
/// file cannot be read, InvalidArgument if the sample does not exist.
DataSummary summarise(const std::string& path, const SummaryOptions& options);

}  // namespace levada::cli
