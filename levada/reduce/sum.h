// The arithmetic of a reduction: sums and averages of arrays.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "levada/tensor/dtype.h"

namespace levada {

enum class ReduceOp : std::uint8_t { sum, average };

/// Returns "sum" or "average".
std::string_view to_string(ReduceOp op);

/// Throws Unsupported, naming dtype and operation, if the reduction does not exist. Integers and floating-point numbers
/// of at least 16 bits, real and complex, can be summed; only floating-point numbers can be averaged.
void check_reducible(DType dtype, ReduceOp op);

/// Returns the type in which numbers of `dtype` are added up: float32 for float16 and bfloat16, else the same.
DType sum_dtype(DType dtype);

/// Computes to[i] = (from[0][i] + from[1][i] + ...) / divisor, in this order. The bits depend on nothing else, even if
/// the calling thread rounds differently or flushes denormal numbers to zero. Divides the sum once. float16 and
/// bfloat16 are added up in float32 and rounded once, to nearest, ties to even. Integers wrap and are not divided.
/// Requires at least one array; each has `count` aligned elements of a reducible `dtype`. `to` may be one of the
/// arrays, but must not overlap one otherwise. `to_dtype`: `dtype`; or its sum_dtype(), in the first step of a
/// reduction in several steps; or the type whose sum_dtype() is `dtype`, in the last step.
void add_arrays(DType dtype, std::span<const std::byte* const> from, std::size_t count, DType to_dtype, std::byte* to,
                std::size_t divisor = 1);

}  // namespace levada
