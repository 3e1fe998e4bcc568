// The tokens and labels of batches, by the names that trainers give to fields.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "levada/sources/source.h"
#include "levada/tree/schema.h"

namespace levada {

/// Counts batch after batch, and remembers which fields of the last one's schema count.
class StepCounter {
 public:
  /// Returns the tokens and labels of a batch, with 0 samples: the sums over its mappings, whose tensors count thus:
  /// - tokens: the positions of `tokens`, or else of `input_ids`.
  /// - labels: the positions at which `loss_mask` is not 0; or else the `shift_labels`, or else the `labels`, that are
  ///   not negative. `labels` of the shape of `input_ids` belong to the token at the same place, as in transformers:
  ///   models shift them, so the first of each row does not count.
  /// If a tensor has more than `rows` along dim 0, only the first `rows` count.
  StepTotals count(const FlatTree& batch, std::int64_t rows = std::numeric_limits<std::int64_t>::max());
  StepTotals count(const Tree& batch) { return count(flatten(batch, schema_)); }

 private:
  /// The leaves of one mapping, or -1.
  struct Fields {
    int tokens = -1, input_ids = -1, loss_mask = -1, shift_labels = -1, labels = -1;
  };
  static std::vector<Fields> find(const Schema& schema);

  Schema schema_;
  std::vector<Fields> mappings_;
};

}  // namespace levada
