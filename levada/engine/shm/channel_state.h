// What shared memory keeps of a channel, beside what every medium does.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include "levada/engine/channel_table.h"

namespace levada::shm {

struct ShmChannelState final : ChannelState {
  struct Sent {
    std::uint32_t slot = 0;
    std::uint32_t generation = 0;
  };
  std::deque<Sent> outstanding;           ///< the last messages sent, back to the first that not all have received
  std::atomic<bool> writes_much = false;  ///< this rank, to private views: copies are cheaper. Any thread
};

inline ShmChannelState& own_state(ChannelState& channel) {
  return static_cast<ShmChannelState&>(channel);
}

}  // namespace levada::shm
