// Batches that a Python thread makes on request of a feed's reading thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/sources/source.h"
#include "python/src/base/process.h"
#include "python/src/batch/batch_memory.h"

namespace levada::python {

/// Returns whether a leaf is a pickle. The bytes of a pickle may differ between processes, as those of a set do.
bool is_pickle(const Leaf& leaf);

/// The number and content digest of an item of a loader.
struct ItemMark {
  std::int64_t item = -1;    ///< index of the item; -1 for none
  std::uint64_t digest = 0;  ///< item_digest(), or an odd number that identifies what the loader made it of
};

/// A loader's state, which only the rank that reads understands; all other ranks treat it as opaque bytes.
struct LoaderState {
  Bytes message;
  std::string failure;  ///< reason why there is no message; empty if there is one
};

/// A Source whose items, those of a Python iterator, are made on request and one at a time by another thread or by a
/// function. An item consists of `samples` samples of the Source: one batch, or a global batch for several ranks. The
/// reading thread does not need the GIL, and stop() unblocks it even if the other thread is stuck.
class Handoff : public Source {
 public:
  /// `position` is the number of items that the iterator has already returned. `activity` describes it in the text of a
  /// Timeout. `counts_rows`: whether an item's samples are the rows of its first tensor; the last item may then have
  /// fewer. `cuts_rows`: whether every tensor is cut along dim 0, so that all must have the same number of rows.
  /// `is_by_number` is that of the Source.
  Handoff(std::int64_t samples, std::int64_t position, std::string activity, bool counts_rows, bool cuts_rows = false,
          bool is_by_number = false)
      : samples_(samples),
        counts_rows_(counts_rows),
        cuts_rows_(cuts_rows),
        is_by_number_(is_by_number),
        position_(position),
        given_(position),
        activity_(std::move(activity)) {}

  bool is_by_number() const override { return is_by_number_; }

  /// A request to the making side: for the next item, for the sizes of items, for one item made of several of those, or
  /// for the last item again.
  struct HandoffRequest {
    std::int64_t skipped = 0;            ///< items to skip first
    std::int64_t taken = 0;              ///< items to take and keep, for report_sizes()
    std::vector<std::int64_t> gathered;  ///< indexes into the items taken last, for one item made of them
    bool repeats = false;
  };
  /// Called by the only making thread. Blocks until something is requested; returns nothing if there will be no further
  /// requests.
  std::optional<HandoffRequest> wanted();
  /// An item of an iterator.
  struct Item {
    Tree tree;
    std::optional<BatchMemory::Place> place;  ///< place of the tensors in a Block
    std::optional<LoaderState> state;         ///< empty if the loader has not been asked since the last one
    std::int64_t since = 0;                   ///< items made after that state, including this one
    std::uint64_t digest = 0;                 ///< as in ItemMark
  };
  /// Sets the item that give() delivers. Its tensors may be in memory that is reused once another item is requested.
  void prepare(Item item) { prepared_ = std::move(item); }
  void give();
  /// Responds with the sizes of the items that were taken, fewer than requested only at the end. `state` and `since`
  /// are those of an Item; `digest` is that of the last item.
  void report_sizes(std::vector<SampleSize> sizes, std::optional<LoaderState> state, std::int64_t since,
                    std::uint64_t digest);
  /// Reports that the making side skips items to find its position: item `number` of `all` is next. `number` = `all` at
  /// the end.
  void report_progress(std::int64_t number, std::int64_t all);
  /// Reports the end: there are `more` items after those given.
  void end(std::int64_t more);
  /// Reports that the iterator raised.
  void fail(ErrorKind kind, std::string message);

  /// Sets the making side to a function that the reading thread calls when it needs an item. Must be called before the
  /// first read().
  void make_by(std::function<void()> make) { make_ = std::move(make); }
  /// Sets a function that the reading thread calls periodically while another thread takes long to make an item.
  void on_stalled(std::function<void()> stalled) { stalled_ = std::move(stalled); }
  /// Sets the memory in which the iterator's tensors may be allocated. Must be called before the first read().
  void set_memory(std::shared_ptr<BatchMemory> memory) { batch_memory_ = std::move(memory); }
  const std::shared_ptr<BatchMemory>& batch_memory() const { return batch_memory_; }
  /// Returns the Python objects that the reading thread no longer needs.
  const std::shared_ptr<DeferredOwners>& spent() const { return spent_; }

  /// Ends all requests after `grace`: wanted() returns nothing, and a read() that still waits is abandoned. May be
  /// called on any thread. Does nothing in a forked child, where the lock may be held by a thread that does not exist.
  void stop(Duration grace);

  std::optional<std::int64_t> size() const override;
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count) override;
  Tree gather(std::span<const std::int64_t> samples, Memory& memory) override;
  std::int64_t num_rows(const FlatTree& batch, std::int64_t samples) const override;
  bool is_comparable(const Leaf& leaf) const override { return !is_pickle(leaf); }
  std::string difference_remedy() const override;
  void on_wait(std::function<void()> waiting) override { waiting_ = std::move(waiting); }
  /// Returns an encoded IterableCursor. Only cursors for the first `next` after a state was given include that state.
  Bytes cursor(std::int64_t next) const override;
  std::string activity() const override;
  ReadStats stats() const override { return {}; }

 private:
  struct Failure {
    ErrorKind kind;
    std::string message;
  };
  struct End {};
  struct Abandoned {};
  using Answer = std::variant<Item, std::vector<SampleSize>, End, Failure, Abandoned>;

  Answer ask(HandoffRequest wanted);
  /// Returns the result of ask(), or nothing at the end. Throws if there is none.
  template <typename T>
  std::optional<T> expect(HandoffRequest wanted);
  /// Returns the tree of an item, and passes its memory on to `memory`.
  Tree adopt(Item item, Memory& memory) const;
  /// Throws InvalidArgument if a tensor does not have as many rows as the first one.
  void expect_rows(const Tree& item) const;
  void keep_state(std::optional<LoaderState> state, std::int64_t since);
  /// Waits until the state has changed, `stop_` is due, or a short time has passed. In the latter two cases calls
  /// waiting_ and, if `stalled` has expired, calls stalled_ and restarts `stalled`.
  void wait_for_answer(std::unique_lock<std::mutex>& lock, Deadline& stalled);
  /// Checks that an item with this few rows is the last one. Throws SourceError.
  void expect_last(std::int64_t rows);
  void answer(Answer answer);

  const pid_t process_ = current_process();
  const std::int64_t samples_;
  const bool counts_rows_;
  const bool cuts_rows_, is_by_number_;
  std::int64_t position_;     ///< items requested
  std::int64_t given_;        ///< number of items known to exist
  std::int64_t lacking_ = 0;  ///< samples of the last one
  std::int64_t taken_ = 0;    ///< first item of those that sizes() took last
  const std::string activity_;
  const std::shared_ptr<DeferredOwners> spent_ = std::make_shared<DeferredOwners>();
  std::shared_ptr<BatchMemory> batch_memory_;
  Item prepared_;                         ///< used by the making side
  std::optional<LoaderState> state_;      ///< the last state given
  std::int64_t state_position_ = 0;       ///< items given when that state was taken
  mutable std::int64_t state_next_ = -1;  ///< the `next` whose cursors contain it; -1 before there is one
  ItemMark mark_;                         ///< mark of the last item given
  std::string progress_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<HandoffRequest> wanted_;
  std::function<void()> make_, stalled_, waiting_;
  std::optional<Answer> answer_;
  bool ended_ = false;
  std::optional<Deadline> stop_;
};

/// A position at which a run of an iterable resumes: the content of Handoff::cursor().
struct IterableCursor {
  std::int64_t next = 0;             ///< first item not yet delivered, or first row if samples are rows
  std::int64_t position = 0;         ///< items given when the iterator was asked for its state
  std::optional<LoaderState> state;  ///< empty if it is in an earlier cursor, or if the iterator has none
  bool is_counted = false;           ///< whether the iterator has no state
  ItemMark mark = {};                ///< mark of the last item delivered

  Bytes encode() const;
  /// Returns whether the bytes are an IterableCursor and not a corpus's cursor.
  static bool is_one(ByteView bytes);
  /// Decodes untrusted bytes. Throws CorruptMessage.
  static IterableCursor decode(ByteView bytes);
};

}  // namespace levada::python
