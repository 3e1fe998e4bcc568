// Labels of language models, which zigzag separates from the tokens that predict them unless they have been shifted.
#pragma once

#include "levada/mesh/mesh.h"
#include "levada/plan/layout.h"
#include "levada/tree/schema.h"

namespace levada {

/// Throws InvalidArgument if the layout cuts `labels` by zigzag and they are the `input_ids` at the same places: a
/// model of transformers then shifts them within the parts of a sequence. A batch with `shift_labels` beside them may.
void expect_shifted_labels(const FlatTree& batch, const Layout& layout, const Mesh& mesh);

}  // namespace levada
