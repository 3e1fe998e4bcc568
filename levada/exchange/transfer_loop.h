// Moves the bytes of an exchange. Private to this module.
#pragma once

#include <memory>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/exchange/exchange.h"
#include "levada/exchange/exchange_streams.h"

namespace levada {

/// The inputs of a TransferLoop. Borrows everything.
struct TransferParts {
  Engine& engine;
  SampleStore& store;
  const ExchangeRows& rows;
  const SampleIndex& index;
  const Holdings& holdings;
  const ExchangeOptions& options;
  std::uint64_t chunk_bytes;
};

/// Sends and receives a rank's rows concurrently, until both are done. A rank that does both keeps receiving while it
/// waits for space to send.
class TransferLoop {
 public:
  /// `to_all`: a channel from each rank to all others, by sender, on which the rank sends all its rows one after
  /// another; rows.sent_by has their bytes. If empty, each row has its own channel. Throws as OutgoingStream does.
  TransferLoop(const TransferParts& parts, std::span<const std::shared_ptr<Channel>> to_all);

  /// Moves all bytes, and adds to the counts of messages and bytes in `result`.
  void run(ExchangeResult& result);

 private:
  struct Send {
    OutgoingStream stream;
    std::shared_ptr<Channel> channel;
    std::uint64_t room = 0;     ///< maximum bytes in flight: the message that was sent and the one being written
    OutgoingMessage message{};  ///< to be published when there is room, unless its block is empty
  };
  /// Bytes [at, end) of a sender's stream are still to arrive; some of them belong to rows [row, end_row) of incoming_.
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
  /// Returns whether it made progress. Sets `over` when the stream has ended.
  bool send_some_of(Send& send, bool& over, ExchangeResult& result);
  bool receive_some(ExchangeResult& result);
  /// Writes the bytes addressed to this rank and returns their number.
  std::uint64_t receive_message(Receive& receive, ByteView message);
  std::uint64_t write(Receive& receive, ByteView run);
  bool is_finished(const Send& send) const { return !send.message.block && send.stream.bytes_left() == 0; }
  bool has_room(const Send& send) const;
  void wait();

  const TransferParts parts_;
  std::vector<IncomingRow> incoming_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::vector<std::size_t> active_;  ///< indices of sends_
  std::size_t next_ = 0;             ///< first of sends_ not yet begun
  std::uint64_t in_flight_ = 0;      ///< upper bound, for active_, of bytes in flight
  std::uint64_t blocked_on_memory_ = 0;
  Clock::time_point last_moved_ = Clock::now();
};

}  // namespace levada
