// For tests of what is refused.
#pragma once

#include <string>

#include "levada/base/error.h"

namespace levada {

/// What the function's exception says; any other class of exception passes.
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
