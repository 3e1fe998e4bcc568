// A layout that divides rows separates the labels of language models from the tokens that predict them, unless the
// labels are shifted first.
#pragma once

#include "levada/mesh/mesh.h"
#include "levada/plan/layout.h"
#include "levada/tree/schema.h"

namespace levada {

/// Returns whether the layout divides rows of any field, so that expect_shifted_labels() may throw.
bool may_part_labels(const Layout& layout, const Mesh& mesh);

/// Throws InvalidArgument if the layout divides the rows of `labels` and they equal the `input_ids` position by
/// position: a transformers model would then shift them within each part of a sequence. A batch that also has
/// `shift_labels` passes.
void expect_shifted_labels(const FlatTree& batch, const Layout& layout, const Mesh& mesh);

}  // namespace levada
