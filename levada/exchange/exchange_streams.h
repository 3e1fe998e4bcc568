// The two ends of what a rank sends: the bytes of many samples as one stream, divided among messages. For this module's
// sources alone.
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

/// A message of an exchange: a list of these, and then the bytes of those that the message itself carries.
struct MessageRun {
  static constexpr std::uint64_t carried = UINT64_MAX;

  std::uint64_t position = carried;  ///< in the sender's memory, for Engine::view(); or `carried`
  std::uint64_t size = 0;
};
struct OutgoingMessage {
  Block block{};
  std::uint64_t size = 0;                       ///< of the message in the block
  std::uint64_t payload = 0;                    ///< bytes of all its runs
  std::shared_ptr<const void> referenced = {};  ///< what stays until all receivers have ended their leases

  /// Returns whether there was room for it; it is empty then.
  bool try_publish(Engine& engine, Channel& channel);
};
/// Returns the runs of a message that `from` has sent, at most `max_bytes` together; valid as long as its lease. Throws
/// CorruptMessage for bytes that lie.
std::vector<ByteView> runs_of(const Engine& engine, int from, ByteView message, std::uint64_t max_bytes);

/// What a sender reads from: pieces of its store, one after the other.
class OutgoingStream {
 public:
  /// The bytes of `sent`, some of the rows. Throws InvalidArgument where the store no longer holds an item as it was in
  /// `holdings`.
  OutgoingStream(const ExchangeRows& rows, std::span<const ExchangeRow> sent, const SampleIndex& index,
                 const Holdings& holdings, const SampleStore::Reading& here);

  std::uint64_t bytes_left() const { return left_; }
  /// Makes a message of the next bytes: it refers to those that lie in the engine's memory, if all ranks share that,
  /// and carries at most `max_carried` others. Its block is empty where the engine has no memory; it takes `size`
  /// bytes.
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

/// What a row is received into: the memory in which its samples stay.
class IncomingRow {
 public:
  /// `mode`: of what comes into the store. Stores items that have no bytes, up to the first that has some.
  IncomingRow(const ExchangeRows& rows, const ExchangeRow& row, const SampleIndex& index, SampleStore& store,
              CopyMode mode);

  const ExchangeRow& row() const { return *row_; }
  /// Takes the next bytes, no more than are missing.
  void write(ByteView bytes);
  /// Stores what is complete.
  void commit();

 private:
  const ExchangeRow* row_;
  SampleStore* store_;
  CopyMode mode_;
  std::vector<SampleStore::Arrival> items_;
  std::vector<std::byte*> memory_;  ///< of the items
  std::size_t item_ = 0;            ///< the one that is being filled
  std::uint64_t at_ = 0;            ///< bytes in it
  std::size_t committed_ = 0;       ///< items that the store has
};

}  // namespace levada
