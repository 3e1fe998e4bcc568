// A channel of a joined engine.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/engine/joined/joined.h"
#include "levada/engine/joined/relay.h"
#include "levada/engine/ranks.h"

namespace levada::joined {

/// The state that all groups of a rank share.
struct SharedState {
  /// Returns when a group first saw the loss of `rank`, in the job's numbering. If none has seen it yet, records and
  /// returns the current time.
  Clock::time_point first_seen(int rank) {
    const std::lock_guard lock(mutex);
    return losses.try_emplace(rank, Clock::now()).first->second;
  }

  Options options;
  std::shared_ptr<Relay> relay;
  std::atomic<const Block::Home*> home = nullptr;  ///< home of the near engine's blocks, once there is one
  std::mutex mutex;                                ///< guards `losses`
  std::map<int, Clock::time_point> losses;
};

/// Returns whether a message can be published on the channel now.
inline bool has_room(Engine& engine, Channel& channel) {
  Channel* const it[] = {&channel};
  return engine.wait({.publish = it}, Deadline::now()) == Woken::ready;
}

/// Returns whether even messages that have arrived can no longer be received.
inline bool is_aborted(const Cause& cause) {
  return cause.kind != ErrorKind::peer_lost && cause.kind != ErrorKind::corrupt_message;
}

/// Returns a landing that puts messages from other hosts in blocks of `near`, as long as that engine exists.
inline Landing landing_in(std::weak_ptr<Engine> near) {
  return [near = std::move(near)](std::size_t bytes) {
    const auto engine = near.lock();
    return engine ? engine->try_allocate(bytes) : std::nullopt;
  };
}

/// A channel as held by its sender or by one of its receivers.
class JoinedChannel final : public Channel {
 public:
  /// The endpoints that this rank uses, except those that a Forward sends on.
  struct Endpoints {
    EndpointRef near, incoming, outgoing;
  };

  /// `forwarder`: the result of Route::forwarder(). `has_ended`: whether the group has ended for a cause.
  JoinedChannel(const void* owner, int from, std::vector<int> to, int window, int rank, bool must_be_closed,
                Endpoints endpoints, int forwarder, std::shared_ptr<const std::atomic<bool>> has_ended,
                std::shared_ptr<SharedState> shared)
      : Channel(owner, from, std::move(to), window),
        sends(from == rank),
        receives(rank_in(this->to(), rank) >= 0),
        forwarder_(forwarder),
        must_be_closed_(must_be_closed),
        endpoints_(std::move(endpoints)),
        is_sending_(sends),
        has_ended_(std::move(has_ended)),
        shared_(std::move(shared)) {}
  ~JoinedChannel() override { leave(); }

  /// Closes this rank's own end; a Forward has separate ends. After the group has ended, does not close the sending
  /// end, because receivers might see that before they see the cause.
  void close(End end) {
    if (end == End::sending) {
      if (!is_sending_.exchange(false) || *has_ended_) return;
      for (const EndpointRef& endpoint : {endpoints_.near, endpoints_.outgoing}) {
        if (endpoint && endpoint.engine) endpoint.engine->close(*endpoint.channel, End::sending);
      }
    } else if (receives && receiving().engine) {
      receiving().engine->close(*receiving().channel, End::receiving);
    }
  }
  /// Closes the ends, and releases the engines.
  void leave() {
    if (!must_be_closed_) close(End::sending);
    close(End::receiving);
    for (EndpointRef* const endpoint : {&endpoints_.near, &endpoints_.incoming, &endpoints_.outgoing})
      endpoint->engine.reset();
  }

  const EndpointRef& near() const { return endpoints_.near; }
  const EndpointRef& outgoing() const { return endpoints_.outgoing; }
  /// Returns the hop on which this rank's messages arrive.
  const EndpointRef& receiving() const { return receives_near() ? endpoints_.near : endpoints_.incoming; }
  bool receives_near() const { return static_cast<bool>(endpoints_.near); }
  bool is_sending() const { return is_sending_; }

  /// Returns whether the forwarder has left before it forwarded everything. Called only by the receiving thread.
  bool forwarder_is_lost() { return forwarder_ >= 0 && watch_.is_lost(receiving()); }
  int forwarder() const { return forwarder_; }

  const bool sends, receives;

 private:
  const int forwarder_;
  const bool must_be_closed_;
  Endpoints endpoints_;
  ForwarderWatch watch_;
  std::atomic<bool> is_sending_;
  const std::shared_ptr<const std::atomic<bool>> has_ended_;
  std::shared_ptr<SharedState> shared_;  ///< keeps the relay alive
};

}  // namespace levada::joined
