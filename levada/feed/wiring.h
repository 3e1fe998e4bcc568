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

/// The ranks that read, the data that each rank receives, and the channels that this rank uses. Constant after
/// construction.
struct FeedWiring {
  std::shared_ptr<Engine> engine;
  Mesh mesh = {};                  ///< mesh of the feed, or of its ContextFeed
  Layout layout = {};              ///< likewise
  Layout cuts = {};                ///< cuts of the ContextFeed, if any
  std::weak_ptr<Engine> parent{};  ///< the engine passed to the feed, with the same ranks
  std::vector<Audience> audiences;
  std::vector<int> readers;                    ///< ascending; the first one is the lead
  std::vector<std::string> reader_hosts = {};  ///< host name of each reader; empty if all are on one host
  int units = 1;                               ///< batches per round

  std::vector<std::shared_ptr<Channel>> data;     ///< one per audience; null if this rank takes no part
  std::shared_ptr<Channel> decisions;             ///< from the lead to all ranks: Granted, Ended
  std::vector<std::shared_ptr<Channel>> reports;  ///< to the lead: Ready, Stopped, StopAsked, Left; null as above

  int rank() const { return engine->info().rank; }
  int lead() const { return readers.front(); }
  bool is_reader() const;
  /// Returns the position in `readers`. Requires is_reader().
  int reader_index() const;
  /// Returns the index of the audience that this rank belongs to.
  int own_audience() const;
};

/// Opens the channels. Collective. A data channel holds at most `depth` batches.
FeedWiring wire_feed(std::shared_ptr<Engine> engine, std::vector<Audience> audiences, int depth);

/// The obstacle to sending an event: no room in a channel, or no memory. Neither is set if the event was sent.
struct SendObstacle {
  Channel* room = nullptr;
  std::size_t memory = 0;

  explicit operator bool() const { return room != nullptr || memory > 0; }
};

/// Sends an event if there is room and memory at the moment.
SendObstacle try_send(Engine& engine, Channel& channel, const feed_protocol::Event& event);
/// Same meaning as levada::Received.
struct ReceivedEvent {
  std::optional<feed_protocol::Event> event;
  bool ended = false;
};
/// Returns the next event, or the end of the channel. Throws CorruptMessage.
ReceivedEvent try_receive(Engine& engine, Channel& channel);

/// Sends this rank's reports to the lead. Any thread may call.
class Reporter {
 public:
  explicit Reporter(const FeedWiring& wiring) : wiring_(wiring) {}
  /// Queues `event` and sends, in order, what can be sent now. Returns the obstacle to the first event that remains. A
  /// reader never has more Ready events queued than there are rounds not yet granted.
  SendObstacle send(std::optional<feed_protocol::Event> event);
  Channel& channel() const { return *wiring_.reports[static_cast<std::size_t>(wiring_.rank())]; }

 private:
  const FeedWiring& wiring_;
  std::mutex mutex_;
  std::vector<feed_protocol::Event> waiting_;
};

/// Returns the items that readers are rereading to find the position of a saved state. While these change, waits for
/// the readers do not time out.
std::vector<std::string> progress_of_readers(const FeedWiring& wiring);

}  // namespace levada
