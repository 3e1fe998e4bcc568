// What readers compare of the batches that several of them read.
#pragma once

#include "levada/feed/protocol.h"
#include "levada/sources/source.h"
#include "levada/tree/schema.h"

namespace levada {

/// Returns the digest of a batch that `source` has read: structure, shapes, values and all bytes of its tensors,
/// however these are strided. Leaves for which Source::is_comparable() is false do not count. The eighth field stands
/// for all after it, too.
feed_protocol::UnitDigest digest_of(int unit, const FlatTree& batch, const Source& source);

}  // namespace levada
