// The channel state that the shm engine adds to ChannelState.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include "levada/engine/channel_table.h"

namespace levada::shm {

struct ShmChannelState final : ChannelState {
  struct SentMessage {
    std::uint32_t slot = 0;
    std::uint32_t generation = 0;
  };
  std::deque<SentMessage> outstanding;    ///< the last messages sent, from the first that not all receivers have
                                          ///< received
  std::atomic<bool> writes_much = false;  ///< whether this rank writes so much to private views that copies are
                                          ///< cheaper; thread-safe
};

inline ShmChannelState& own_state(ChannelState& channel) {
  return static_cast<ShmChannelState&>(channel);
}

}  // namespace levada::shm
