#include "levada/engine/engine.h"

#include <algorithm>

namespace levada {
namespace {

/// Copies what fits, whole UTF-8 characters only, and leaves a zero behind it.
template <std::size_t N>
void put_text(std::array<char, N>& to, std::string_view text) {
  std::size_t length = std::min(text.size(), N - 1);
  if (length < text.size()) {
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;
  }
  std::copy_n(text.begin(), length, to.begin());  // not payload: a status
}

}  // namespace

std::span<std::byte> Engine::make_private(Channel& /*channel*/, Lease& /*lease*/) {
  return {};
}

std::shared_ptr<GroupReducer> Engine::open_reducer() {
  return nullptr;
}

Status Status::make(std::string_view operation, std::int64_t step, int waiting_for, std::string_view detail) {
  Status status;
  put_text(status.operation, operation);
  put_text(status.detail, detail);
  status.step = step;
  status.since_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  status.waiting_for = waiting_for;
  return status;
}

}  // namespace levada
