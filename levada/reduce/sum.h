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

/// Throws Unsupported, naming dtype and operation, for a reduction that does not exist. There are sums of integers and
/// of floating-point numbers of at least 16 bits, real and complex, and averages of floating-point numbers.
void check_reducible(DType dtype, ReduceOp op);

/// Computes to[i] = from[0][i] + from[1][i] + ... in this order; the bits depend on nothing else, also where the
/// calling thread rounds differently or flushes denormal numbers to zero. An average divides the sum once by the number
/// of arrays. float16 and bfloat16 are added up in float32 and rounded once, to nearest, ties to even; integers wrap.
/// There is at least one array, each of `count` elements, which are aligned. `to` may be one of the arrays, but must
/// not overlap one otherwise.
void reduce_arrays(DType dtype, ReduceOp op, std::span<const std::byte* const> from, std::size_t count, std::byte* to);

/// Returns the type in which numbers of `dtype` are added up: float32 for float16 and bfloat16, else the same.
DType sum_dtype(DType dtype);

/// One step of a reduction in several steps: reduce_arrays() of arrays of `dtype` into one of `to_dtype`. One of the
/// two is the sum_dtype() of the other, or they are the same. Divides the sum once by `divisor`.
void add_arrays(DType dtype, std::span<const std::byte* const> from, std::size_t count, DType to_dtype, std::byte* to,
                std::size_t divisor = 1);

}  // namespace levada
