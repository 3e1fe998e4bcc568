// Moves the bytes of an exchange. For this module's sources alone.
#pragma once

#include <memory>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/exchange/exchange.h"
#include "levada/exchange/exchange_streams.h"

namespace levada {

/// What a TransferLoop works with. Borrows all.
struct TransferParts {
  Engine& engine;
  SampleStore& store;
  const ExchangeRows& rows;
  const SampleIndex& index;
  const Holdings& holdings;
  const ExchangeOptions& options;
  std::uint64_t chunk_bytes;
};

/// Sends and receives a rank's rows at the same time, until both are done. A rank that does both never waits for space
/// alone.
class TransferLoop {
 public:
  /// `to_all`: a channel from each rank to all others, by rank, on which it sends all its rows, one behind the other;
  /// rows.sent_by says how much that is. Empty: each row has a channel of its own. Throws as OutgoingStream does.
  TransferLoop(const TransferParts& parts, std::span<const std::shared_ptr<Channel>> to_all);

  /// Adds to the result's messages and bytes.
  void run(ExchangeResult& result);

 private:
  struct Send {
    OutgoingStream stream;
    std::shared_ptr<Channel> channel;
    std::uint64_t room = 0;     ///< what it may have on the way: the message that is sent and the one that is written
    OutgoingMessage message{};  ///< to be published when there is room, if its block is not empty
  };
  /// Bytes [at, end) of what a rank sends are to come, of which some are in rows [row, end_row) of incoming_.
  struct Receive {
    std::shared_ptr<Channel> channel;
    std::uint64_t at = 0, end = 0;
    std::size_t row = 0, end_row = 0;
  };

  void add_send(std::span<const ExchangeRow> rows, const SampleStore::Reading& here, std::shared_ptr<Channel> channel);
  void open_rows(const SampleStore::Reading& here);
  void open_to_all(std::span<const std::shared_ptr<Channel>> to_all, const SampleStore::Reading& here);
  void prepare_incoming();
  bool send_some(ExchangeResult& result);
  /// Whether it has progressed; `over` becomes true at its end.
  bool send_some_of(Send& send, bool& over, ExchangeResult& result);
  bool receive_some(ExchangeResult& result);
  /// Writes what is for this rank, and returns how many bytes that was.
  std::uint64_t receive_message(Receive& receive, ByteView message);
  std::uint64_t write(Receive& receive, ByteView run);
  bool is_finished(const Send& send) const { return !send.message.block && send.stream.bytes_left() == 0; }
  bool has_room(const Send& send) const;
  void wait();

  const TransferParts parts_;
  std::vector<IncomingRow> incoming_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::vector<std::size_t> active_;  ///< of sends_
  std::size_t next_ = 0;             ///< of sends_, not yet begun
  std::uint64_t on_the_way_ = 0;     ///< at most, of active_
  std::uint64_t blocked_on_memory_ = 0;
  Clock::time_point last_moved_ = Clock::now();
};

}  // namespace levada
