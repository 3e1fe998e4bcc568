// Assertions about conditions that hold unless Levada itself has a bug. Invalid input, in contrast, throws in every
// build.
#pragma once

#include <string_view>

/// Prints file, line, condition and `text`, and aborts the program, if `condition` does not hold. Checked in the
/// presets dev, asan, tsan and fuzz. In other builds, `condition` is compiled but not evaluated, and costs nothing.
#ifdef LEVADA_ASSERTIONS
#define LEVADA_ASSERT(condition, text) \
  ((condition) ? static_cast<void>(0) : ::levada::assertion_failed(__FILE__, __LINE__, #condition, text))
#else
#define LEVADA_ASSERT(condition, text) static_cast<void>(sizeof((condition) ? 1 : 0))
#endif

namespace levada {

[[noreturn]] void assertion_failed(const char* file, int line, const char* condition, std::string_view text) noexcept;

}  // namespace levada
