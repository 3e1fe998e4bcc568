// Incremental digests of each field over all batches.
#pragma once

#include <string>
#include <vector>

#include "levada/base/hash.h"
#include "levada/report/feed_report.h"
#include "levada/tree/schema.h"

namespace levada::cli {

/// Digests the fields of successive batches. Used by one thread at a time.
class FieldDigests {
 public:
  /// Adds every tensor of `batch`.
  void add(const FlatTree& batch);
  void add(const Tree& batch) { add(flatten(batch)); }
  /// Returns the fields in the order of their first appearance.
  std::vector<report::FieldReport> fields() const;

 private:
  struct Field {
    std::string path;
    DType dtype;
    Shape shape;  ///< shape in the first batch
    Digest digest;
  };
  Field& field_at(const std::string& path, const Tensor& tensor);

  std::vector<Field> fields_;
};

}  // namespace levada::cli
