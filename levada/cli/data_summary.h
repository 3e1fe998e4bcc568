// What there is in a file of documents.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "levada/report/length_histogram.h"
#include "levada/tensor/dtype.h"

namespace levada::cli {

struct SummaryOptions {
  std::int64_t sample = 0;  ///< number of the document to show
  std::string text_field = "text";
  bool skip_bad = false;
  std::function<void(std::uint64_t done, std::uint64_t in_all)> progress = {};
};

/// The beginning of one document.
struct DocumentSample {
  std::int64_t document = 0, tokens = 0;
  bool is_text = false;
  std::string text;                  ///< UTF-8, if it is text
  std::vector<std::string> numbers;  ///< else its tokens
};

struct DataSummary {
  std::string format;  ///< "jsonl", "txt" or "megatron"
  std::vector<std::string> paths;
  DType dtype;
  std::int64_t documents = 0, sequences = 0, tokens = 0, bad_lines = 0;
  std::uint64_t bytes = 0;  ///< of all files
  bool has_modes = false;
  report::LengthHistogram lengths;  ///< of documents, in tokens
  DocumentSample sample;
};

/// Reads all of a .jsonl or .txt, or all of an .idx. Of text, tokens count as a feed would: with the one that ends each
/// document. Throws SourceError for what cannot be read, InvalidArgument if the sample is not there.
DataSummary summarise(const std::string& path, const SummaryOptions& options);

}  // namespace levada::cli
