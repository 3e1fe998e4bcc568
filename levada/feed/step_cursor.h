// The position at which a feed of balanced steps resumes.
#pragma once

#include <vector>

#include "levada/base/bytes.h"
#include "levada/plan/delay_queue.h"

namespace levada {

/// The cursor of the samples' source, and the earlier samples that still wait for a step.
struct StepCursor {
  Bytes source;
  std::vector<DelayedSample> delayed;  ///< ascending, without their sizes

  /// Returns portable bytes: only the source's cursor if no sample waits.
  Bytes encode() const;
  /// Decodes untrusted bytes. Bytes that do not begin like a StepCursor are taken to be the source's cursor. Throws
  /// CorruptMessage.
  static StepCursor decode(ByteView bytes);
};

}  // namespace levada
