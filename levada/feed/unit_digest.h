// Digests by which readers compare batches that several of them read.
#pragma once

#include "levada/feed/protocol.h"
#include "levada/sources/source.h"
#include "levada/tree/schema.h"

namespace levada {

/// Returns the digest of a batch that `source` has read: structure, shapes, values and all bytes of its tensors,
/// regardless of strides. Skips leaves for which Source::is_comparable() is false. The eighth field's digest also
/// covers all later fields.
feed_protocol::UnitDigest digest_of(int unit, const FlatTree& batch, const Source& source);

}  // namespace levada
