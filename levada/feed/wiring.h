// The channels of one feed, as one rank sees them.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/feed/protocol.h"
#include "levada/plan/plan.h"

namespace levada {

/// Which ranks read, what each rank is sent, and the channels that this rank uses: constant once made.
struct FeedWiring {
  std::shared_ptr<Engine> engine;
  std::weak_ptr<Engine> parent{};  ///< the engine that the feed was given, with the same ranks
  std::vector<Audience> audiences;
  std::vector<int> readers;                    ///< ranks, ascending; the first one is the lead
  std::vector<std::string> reader_hosts = {};  ///< the names of their hosts; empty if all are on one host
  int units = 1;                               ///< batches a round

  std::vector<std::shared_ptr<Channel>> data;     ///< one an audience; null where this rank takes no part
  std::shared_ptr<Channel> decisions;             ///< from the lead to all ranks: Granted, Ended
  std::vector<std::shared_ptr<Channel>> reports;  ///< from each rank to the lead: Ready, Stopped, Left; null as above

  int rank() const { return engine->info().rank; }
  int lead() const { return readers.front(); }
  bool is_reader() const;
  /// Position in `readers`; only for a reader.
  int reader_index() const;
  /// Of the audience that this rank is in.
  int own_audience() const;
};

/// Opens the channels. Collective. At most `depth` batches lie in a data channel.
FeedWiring wire_feed(std::shared_ptr<Engine> engine, std::vector<Audience> audiences, int depth);

/// What keeps an event from being sent: a channel's room, or memory; neither once it has been sent.
struct Blocked {
  Channel* room = nullptr;
  std::size_t memory = 0;

  explicit operator bool() const { return room != nullptr || memory > 0; }
};

/// Sends an event if there is room and memory at the moment.
Blocked try_send(Engine& engine, Channel& channel, const feed_protocol::Event& event);
/// As levada::Received.
struct ReceivedEvent {
  std::optional<feed_protocol::Event> event;
  bool ended = false;
};
/// The next event, or the end of the channel. Throws CorruptMessage.
ReceivedEvent try_receive(Engine& engine, Channel& channel);

/// This rank's reports to the lead; any thread.
class Reporter {
 public:
  explicit Reporter(const FeedWiring& wiring) : wiring_(wiring) {}
  /// Sends, in order, whatever can be sent now; what blocks the first of the rest. A reader has at most as many Ready
  /// events waiting as rounds that are not granted.
  Blocked send(std::optional<feed_protocol::Event> event);
  Channel& channel() const { return *wiring_.reports[static_cast<std::size_t>(wiring_.rank())]; }

 private:
  const FeedWiring& wiring_;
  std::mutex mutex_;
  std::vector<feed_protocol::Event> waiting_;
};

/// Returns which items the readers read again to find the place of a state: as long as that changes, no wait for them
/// times out.
std::vector<std::string> progress_of_readers(const FeedWiring& wiring);

}  // namespace levada
