// The two ends of a multicast: the bytes of many samples as one stream, cut into messages. For this module's sources
// alone.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "levada/base/copy.h"
#include "levada/engine/engine.h"
#include "levada/exchange/exchange_plan.h"
#include "levada/exchange/store.h"

namespace levada {

/// What a sender reads from: pieces of its store, one after the other.
class OutgoingStream {
 public:
  /// Throws InvalidArgument where the store lacks an item or has it in another form.
  OutgoingStream(const ExchangePlan& plan, std::size_t multicast, const SampleStore::Reading& here);

  std::size_t multicast() const { return multicast_; }
  /// Of the next message; 0 at the end.
  std::uint64_t next_bytes() const { return std::min(chunk_bytes_, left_); }
  /// Writes the next message, which has so many bytes.
  void read(std::byte* to);

 private:
  void append(const ExchangePlan& plan, const ExchangeItem& item, const SampleStore::Entry& entry);

  std::size_t multicast_;
  std::uint64_t chunk_bytes_;
  std::uint64_t left_;
  std::vector<ByteView> runs_;
  std::size_t run_ = 0, at_ = 0;
  std::vector<std::shared_ptr<const void>> owners_;
};

/// What a receiver writes to: the memory in which its samples will stay.
class IncomingStream {
 public:
  /// `mode`: of what comes into the store.
  IncomingStream(const ExchangePlan& plan, std::size_t multicast, SampleStore& store, CopyMode mode);

  std::size_t multicast() const { return multicast_; }
  bool done() const { return left_ == 0; }
  /// Takes the next message in. What is complete then goes to the store. Throws CorruptMessage unless it has the bytes
  /// that the plan says.
  void write(ByteView message);
  /// Puts what needs no message into the store: empty items, up to the first that has bytes.
  void take_over_complete();

 private:
  const ExchangePlan& plan_;
  std::size_t multicast_;
  SampleStore& store_;
  CopyMode mode_;
  std::uint64_t left_;
  struct Room {
    std::byte* data = nullptr;
    std::shared_ptr<const void> owner;
    std::uint64_t bytes = 0;
  };
  /// One memory for the rooms that have none yet, up to `end`.
  void make_rooms(std::uint64_t size, std::size_t end);
  std::vector<Room> rooms_;  ///< one an item
  std::size_t rooms_made_ = 0;
  std::size_t room_ = 0;   ///< the one that is being filled
  std::uint64_t at_ = 0;   ///< bytes in it
  std::size_t taken_ = 0;  ///< items that the store has
};

}  // namespace levada
