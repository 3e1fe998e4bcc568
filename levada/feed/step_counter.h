// The tokens and labels of batches, by the names that trainers give to fields.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "levada/sources/source.h"
#include "levada/tree/schema.h"

namespace levada {

/// The rows of a batch that are data, and those with padding.
struct PaddedRows {
  std::int64_t data = 0, all = 0;
};

/// Counts one batch after another, and caches which fields of the last schema count.
class StepCounter {
 public:
  /// Returns the tokens and labels of a batch, with 0 samples. They are sums over its mappings, in which these tensors
  /// count:
  /// - tokens: the positions of `tokens`, or else of `input_ids`. Nothing if there are none in any mapping.
  /// - labels: the positions at which `loss_mask` is not 0; or else the `shift_labels`, or else the `labels`, that are
  ///   not negative. Nothing if there are none in any mapping, or if they are ambiguous: `labels` of the shape of
  ///   `input_ids` whose rows begin with a label, which a causal model of transformers ignores and other models count.
  /// With `padded`, only the first padded->data rows count in a tensor of padded->all rows. Copies nothing.
  StepTotals count(const FlatTree& batch, const std::optional<PaddedRows>& padded = {});

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
