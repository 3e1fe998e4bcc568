// Both ends of the stream that a rank sends: the bytes of many samples, divided into messages. Private to this module.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "levada/base/copy.h"
#include "levada/engine/engine.h"
#include "levada/exchange/exchange_rows.h"
#include "levada/exchange/holdings.h"

namespace levada {

/// A run of bytes in a message. A message is a list of runs, followed by the bytes of those runs that it carries
/// itself.
struct MessageRun {
  static constexpr std::uint64_t carried = UINT64_MAX;

  std::uint64_t position = carried;  ///< in the sender's memory, for Engine::view(); or `carried`
  std::uint64_t size = 0;
};
struct OutgoingMessage {
  Block block{};
  std::uint64_t size = 0;                       ///< size of the message in the block
  std::uint64_t payload = 0;                    ///< bytes of all its runs
  std::shared_ptr<const void> referenced = {};  ///< samples' memory, kept until all receivers have ended their leases

  /// Publishes the message if the channel has room. Returns whether it did; the message is then empty.
  bool try_publish(Engine& engine, Channel& channel);
};
/// Returns the runs of a message from rank `from`, at most `max_bytes` in total. They are valid as long as the
/// message's lease. Throws CorruptMessage for invalid bytes.
std::vector<ByteView> runs_of(const Engine& engine, int from, ByteView message, std::uint64_t max_bytes);

/// The source of a sender's bytes: pieces of its store, one after another.
class OutgoingStream {
 public:
  /// Streams the bytes of `sent`, some of the rows. Throws InvalidArgument if the store no longer holds an item as it
  /// was in `holdings`.
  OutgoingStream(const ExchangeRows& rows, std::span<const ExchangeRow> sent, const SampleIndex& index,
                 const Holdings& holdings, const SampleStore::Reading& here);

  std::uint64_t bytes_left() const { return left_; }
  /// Returns a message with the next bytes. If all ranks share the engine's memory, the message refers to the bytes
  /// there. It carries at most `max_carried` other bytes. If the engine has no memory for the message, its block is
  /// empty and `size` is the size that it needs.
  OutgoingMessage next(Engine& engine, std::uint64_t max_carried);

 private:
  std::vector<MessageRun> next_runs(const Engine& engine, std::uint64_t max_carried) const;
  void append(const ExchangeRows& rows, const ExchangeItem& item, std::size_t key, const SampleStore::Entry& entry);

  std::uint64_t left_ = 0;
  std::vector<ByteView> runs_;
  std::size_t run_ = 0, at_ = 0;
  using Owners = std::vector<std::shared_ptr<const void>>;
  std::shared_ptr<Owners> owners_ = std::make_shared<Owners>();
};

/// The destination of a row: the memory in which the store keeps its samples.
class IncomingRow {
 public:
  /// `mode` is the copy mode for bytes written into the store. Immediately stores the leading items that have no bytes.
  IncomingRow(const ExchangeRows& rows, const ExchangeRow& row, const SampleIndex& index, SampleStore& store,
              CopyMode mode);

  const ExchangeRow& row() const { return *row_; }
  /// Writes the next bytes. Requires at most as many as the row still lacks.
  void write(ByteView bytes);
  /// Commits the complete items to the store.
  void commit();

 private:
  const ExchangeRow* row_;
  SampleStore* store_;
  CopyMode mode_;
  std::vector<SampleStore::PendingWrite> items_;
  std::vector<std::byte*> memory_;  ///< one per item
  std::size_t item_ = 0;            ///< the item being filled
  std::uint64_t at_ = 0;            ///< bytes already in it
  std::size_t committed_ = 0;       ///< number of items already in the store
};

}  // namespace levada
