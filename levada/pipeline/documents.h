// Turns items into documents, and documents into rows.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levada/corpus/batch_rows.h"
#include "levada/pipeline/graph.h"
#include "levada/pipeline/item.h"

namespace levada::pipeline {

struct Document;
using DocumentPtr = std::shared_ptr<const Document>;

/// The tokens of a document and its other fields: contiguous, with the rows' dtypes, in this machine's memory.
struct Document {
  Tensor tokens;
  std::optional<Tensor> labels, loss_mask;
  std::vector<Tensor> others;  ///< in the order of DocumentForm::others
  int kind = 0;                ///< array kind of the item

  std::int64_t size() const { return tokens.shape()[0]; }
  /// Returns a copy of the document from token `begin` on.
  DocumentPtr copy_from(std::int64_t begin) const;
};

/// The fields besides tokens that all documents of an iterator have.
struct DocumentForm {
  bool has_labels = false, has_loss_mask = false;
  std::vector<std::pair<std::string, DType>> others;  ///< sorted by name

  bool operator==(const DocumentForm&) const = default;
};

/// Turns the items of one iterator into documents. The first document determines the form of all others.
class DocumentReader {
 public:
  explicit DocumentReader(const Pack& pack)
      : tokens_field_(pack.tokens),
        max_id_(pack.ids == dtypes::int32 ? std::numeric_limits<std::int32_t>::max()
                                          : std::numeric_limits<std::int64_t>::max()) {}

  /// Converts an item to a document, which views the item's memory if its dtypes match the rows'. Throws
  /// InvalidArgument that names the field.
  DocumentPtr read(const Arrays& item);
  const DocumentForm& form() const { return *form_; }

 private:
  std::string tokens_field_;
  std::int64_t max_id_;
  std::optional<DocumentForm> form_;
};

/// Builds one row.
class RowBuilder {
 public:
  /// `max_segments`: excluding the padding at the end.
  RowBuilder(const Pack& pack, std::int64_t max_segments, const DocumentForm& form);

  /// Begins a segment. Subsequent calls to add() append its tokens: one more than `positions`, since the last token is
  /// only a label.
  void begin_segment(std::int64_t positions);
  /// Adds tokens [begin, end) of a document.
  void add(const Document& document, std::int64_t begin, std::int64_t end);
  /// Returns the row's fields, without the row dimension.
  Arrays finish() &&;

 private:
  void add_labels(const Document& document, std::size_t begin, std::size_t end, std::size_t to) const;

  BatchForm form_;
  NewBatch batch_;
  std::vector<std::pair<std::string, Tensor>> others_;
  PackedRow row_;
  PackedRow::Segment segment_;
  std::size_t at_ = 0;  ///< number of tokens in the segment so far
  int kind_ = 0;
};

}  // namespace levada::pipeline
