// Conditions that hold unless Levada itself has a bug. Input from outside is checked in every build and throws.
#pragma once

#include <string_view>

/// Aborts the program if `condition` does not hold, and prints file, line, condition and `text`. Checked in the presets
/// dev, asan, tsan and fuzz; in other builds `condition` is compiled but not evaluated, and costs nothing.
#ifdef LEVADA_ASSERTIONS
#define LEVADA_ASSERT(condition, text) \
  ((condition) ? static_cast<void>(0) : ::levada::assertion_failed(__FILE__, __LINE__, #condition, text))
#else
#define LEVADA_ASSERT(condition, text) static_cast<void>(sizeof((condition) ? 1 : 0))
#endif

namespace levada {

[[noreturn]] void assertion_failed(const char* file, int line, const char* condition, std::string_view text) noexcept;

}  // namespace levada
