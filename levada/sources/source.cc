#include "levada/sources/source.h"

#include "levada/base/error.h"

namespace levada {

std::vector<SampleSize> Source::sizes(std::int64_t, std::int64_t) {
  throw Unsupported("steps cannot be balanced: this source does not know the sizes of its samples");
}

Tree Source::gather(std::span<const std::int64_t>, Memory&) {
  throw Unsupported("this source yields its samples only in order");
}

}  // namespace levada
