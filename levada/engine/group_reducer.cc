#include "levada/engine/group_reducer.h"

#include <fmt/format.h>

#include "levada/base/bytes.h"
#include "levada/base/error.h"

namespace levada {

void check_pieces(const GroupReducer& reducer, DType dtype, int ranks, std::size_t from_bytes, std::size_t to_bytes) {
  if (!reducer.can_sum(dtype)) throw Unsupported(fmt::format("the group has no sums of {}", dtype.name()));
  if (to_bytes == 0 || to_bytes % dtype.bytes(1) != 0) {
    throw InvalidArgument(fmt::format("a piece of {} bytes has no whole elements of {}", to_bytes, dtype.name()));
  }
  if (checked_mul(to_bytes, static_cast<std::uint64_t>(ranks)) != from_bytes) {
    throw InvalidArgument(
        fmt::format("{} bytes were given for pieces of {} for each of {} ranks", from_bytes, to_bytes, ranks));
  }
}

}  // namespace levada
