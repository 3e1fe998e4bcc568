// Many arrays become one: the arithmetic of a reduction.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "levada/tensor/dtype.h"

namespace levada {

enum class ReduceOp : std::uint8_t { sum, average };

/// "sum", "average".
std::string_view to_string(ReduceOp op);

/// Throws Unsupported, naming dtype and operation, unless there is one: sums of integers and of floating-point numbers
/// of 16 bits and more, real and complex; averages of the latter.
void check_reducible(DType dtype, ReduceOp op);

/// to[i] = from[0][i] + from[1][i] + ..., added up in this order, so that the bits depend on nothing else; for an
/// average the sum is divided once by the number of arrays. float16 and bfloat16 are added up in float32 and rounded
/// once, to nearest, ties to even; integers wrap. `count` elements of `dtype` each; the arrays may begin anywhere
/// that is aligned to an element; `to` overlaps none but may be one of them. At least one array.
void reduce_arrays(DType dtype, ReduceOp op, std::span<const std::byte* const> from, std::size_t count, std::byte* to);

/// In what numbers of `dtype` are added up: float32 for float16 and bfloat16, else the same.
DType sum_dtype(DType dtype);

/// A step of a reduction that is made in several. As reduce_arrays(), of arrays of `dtype` into one of `to_dtype`: the
/// same, or the one is the sum_dtype() of the other. The sum is divided once by `divisor`.
void add_arrays(DType dtype, std::span<const std::byte* const> from, std::size_t count, DType to_dtype, std::byte* to,
                std::size_t divisor = 1);

}  // namespace levada
