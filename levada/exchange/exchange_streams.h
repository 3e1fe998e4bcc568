// The two ends of what a rank sends: the bytes of many samples as one stream, cut into messages. For this module's
// sources alone.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "levada/base/copy.h"
#include "levada/exchange/exchange_rows.h"
#include "levada/exchange/holdings.h"

namespace levada {

/// What a sender reads from: pieces of its store, one after the other.
class OutgoingStream {
 public:
  /// The bytes of `sent`, some of the rows. Throws InvalidArgument where the store no longer holds an item as it was in
  /// `holdings`.
  OutgoingStream(const ExchangeRows& rows, std::span<const ExchangeRow> sent, const SampleIndex& index,
                 const Holdings& holdings, const SampleStore::Reading& here);

  std::uint64_t bytes_left() const { return left_; }
  /// Writes the next bytes, as many as fit; no more than are left.
  void read(std::span<std::byte> to);

 private:
  void append(const ExchangeRows& rows, const ExchangeItem& item, std::size_t key, const SampleStore::Entry& entry);

  std::uint64_t left_ = 0;
  std::vector<ByteView> runs_;
  std::size_t run_ = 0, at_ = 0;
  std::vector<std::shared_ptr<const void>> owners_;
};

/// What a row is received into: the memory in which its samples stay.
class IncomingRow {
 public:
  /// `mode`: of what comes into the store. Stores items that have no bytes, up to the first that has some.
  IncomingRow(const ExchangeRows& rows, const ExchangeRow& row, const SampleIndex& index, SampleStore& store,
              CopyMode mode);

  const ExchangeRow& row() const { return *row_; }
  /// Takes the next bytes, no more than are missing. What is complete then goes to the store.
  void write(ByteView bytes);

 private:
  struct Item {
    BufferPool::Buffer memory;
    std::uint64_t bytes = 0;
    std::uint32_t sample = 0;
    std::uint16_t part = 0;
    std::uint8_t key = 0;
  };
  void commit_complete();

  const ExchangeRows* rows_;
  const ExchangeRow* row_;
  const SampleIndex* index_;
  SampleStore* store_;
  CopyMode mode_;
  std::vector<Item> items_;
  std::size_t item_ = 0;       ///< the one that is being filled
  std::uint64_t at_ = 0;       ///< bytes in it
  std::size_t committed_ = 0;  ///< items that the store has
};

}  // namespace levada
