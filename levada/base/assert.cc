#include "levada/base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace levada {

void assertion_failed(const char* file, int line, const char* condition, std::string_view text) noexcept {
  std::fprintf(stderr, "levada: %s:%d: '%s' does not hold: %.*s\n", file, line, condition,
               static_cast<int>(text.size()), text.data());
  std::abort();
}

}  // namespace levada
