// For tests of rejected input.
#pragma once

#include <string>

#include "levada/base/error.h"

namespace levada {

/// Returns the message of the `Thrown` that `function` throws. Exceptions of other classes propagate.
template <typename Thrown = InvalidArgument, typename Function>
std::string refusal(Function&& function) {
  try {
    function();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace levada
