// Batches that a Python thread makes and a feed's reading thread asks for.
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

/// Returns whether a leaf is a pickle, whose bytes may differ between processes: that of a set does.
bool is_pickle(const Leaf& leaf);

/// Which item of a loader was given, and what was in it.
struct ItemMark {
  std::int64_t item = -1;    ///< its number; -1 for none
  std::uint64_t digest = 0;  ///< item_digest() of it, or an odd number that stands for what the loader made it of
};

/// A loader's state, which only the rank that reads understands: opaque bytes to all others.
struct LoaderState {
  Bytes message;
  std::string failure;  ///< why there is no message; empty where there is one
};

/// A Source whose items are made by another thread or a function, one when it is asked for: what a Python iterator
/// yields. An item is `samples` numbers of the Source: one batch, or a global one for so many ranks. The reading thread
/// needs no GIL and is released by stop(), whatever the other thread is stuck in.
class Handoff : public Source {
 public:
  /// `position`: items that the iterator has given before; `activity`: what it is, for the text of a Timeout.
  /// `counts_rows`: whether an item's samples are the rows of its first tensor, of which the last item may have fewer.
  /// `cuts_rows`: whether every tensor is cut along dim 0, and so must have as many rows.
  /// `is_by_number`: of the Source.
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

  /// What is asked of the making side: the next item; or the sizes of some; or one item made of some of those; or the
  /// last item once more.
  struct Wanted {
    std::int64_t skipped = 0;            ///< items to pass over first
    std::int64_t taken = 0;              ///< items to take and keep, for report_sizes()
    std::vector<std::int64_t> gathered;  ///< of those taken last, counted among them
    bool repeats = false;
  };
  /// The making side, one thread. Blocks until something is wanted; empty: nothing ever again.
  std::optional<Wanted> wanted();
  /// What an iterator yielded.
  struct Item {
    Tree tree;
    std::optional<BatchMemory::Place> place;  ///< of tensors in a Block
    std::optional<LoaderState> state;         ///< empty where the loader has not been asked since the last one
    std::int64_t since = 0;                   ///< items that came after that state, this one included
    std::uint64_t digest = 0;                 ///< as of an ItemMark
  };
  /// The item, which goes with give(). Its tensors may lie in memory that is used again once another item is wanted.
  void prepare(Item item) { prepared_ = std::move(item); }
  void give();
  /// The sizes of the items that were taken, fewer than were asked for only at the end; the loader's state, as of an
  /// Item; the digest of the last one.
  void report_sizes(std::vector<SampleSize> sizes, std::optional<LoaderState> state, std::int64_t since,
                    std::uint64_t digest);
  /// The making side passes over items to find a place: item `number` of `all` is next. None left: `number` = `all`.
  void report_progress(std::int64_t number, std::int64_t all);
  /// There are but `more` after those given.
  void end(std::int64_t more);
  /// The iterator raised.
  void fail(ErrorKind kind, std::string message);

  /// `make` is the making side, called on the reading thread when an item is wanted; to be set before the first read().
  void make_by(std::function<void()> make) { make_ = std::move(make); }
  /// Calls `stalled` now and then, on the reading thread, while another thread takes long to make an item.
  void on_stalled(std::function<void()> stalled) { stalled_ = std::move(stalled); }
  /// Where the iterator's tensors may be made; to be set before the first read().
  void set_memory(std::shared_ptr<BatchMemory> memory) { batch_memory_ = std::move(memory); }
  const std::shared_ptr<BatchMemory>& batch_memory() const { return batch_memory_; }
  /// What the reading thread no longer needs of Python's.
  const std::shared_ptr<Spent>& spent() const { return spent_; }

  /// From `grace` on nothing is wanted any more: wanted() gives 0, and a read() that still waits is abandoned. Any
  /// thread. Does nothing in a forked child, where a thread that is not there may hold the lock.
  void stop(Duration grace);

  std::optional<std::int64_t> size() const override;
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count) override;
  Tree gather(std::span<const std::int64_t> samples, Memory& memory) override;
  std::int64_t rows_per_sample(const Tree& batch) const override;
  bool is_comparable(const Leaf& leaf) const override { return !is_pickle(leaf); }
  std::string difference_remedy() const override;
  void on_wait(std::function<void()> waiting) override { waiting_ = std::move(waiting); }
  /// An IterableCursor. Its state is in those of the first `next` after it was given, and absent from later ones.
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

  Answer ask(Wanted wanted);
  /// What ask() gives; empty at the end. Throws what came in its place.
  template <typename T>
  std::optional<T> expect(Wanted wanted);
  /// The tree of an item, whose memory goes to `memory`.
  Tree adopt(Item item, Memory& memory) const;
  /// Throws InvalidArgument for a tensor of another number of rows than the first one has.
  void expect_rows(const Tree& item) const;
  void keep_state(std::optional<LoaderState> state, std::int64_t since);
  /// Until something has changed, `stop_` has come, or long enough to call waiting_, and stalled_ from `stalled` on.
  void wait_for_answer(std::unique_lock<std::mutex>& lock, Deadline& stalled);
  /// Makes sure that an item of so few rows is the last. Throws SourceError.
  void expect_last(std::int64_t rows);
  void answer(Answer answer);

  const pid_t process_ = current_process();
  const std::int64_t samples_;
  const bool counts_rows_;
  const bool cuts_rows_, is_by_number_;
  std::int64_t position_;     ///< items asked for
  std::int64_t given_;        ///< items that there are, as far as is known
  std::int64_t lacking_ = 0;  ///< samples of the last one
  std::int64_t taken_ = 0;    ///< the first of those that sizes() took last
  const std::string activity_;
  const std::shared_ptr<Spent> spent_ = std::make_shared<Spent>();
  std::shared_ptr<BatchMemory> batch_memory_;
  Item prepared_;                         ///< on the making side
  std::optional<LoaderState> state_;      ///< the last that was given
  std::int64_t state_position_ = 0;       ///< items that had been given by then
  mutable std::int64_t state_next_ = -1;  ///< in whose cursors it is; -1 before there is one
  ItemMark mark_;                         ///< of the last item that was given
  std::string progress_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Wanted> wanted_;
  std::function<void()> make_, stalled_, waiting_;
  std::optional<Answer> answer_;
  bool ended_ = false;
  std::optional<Deadline> stop_;
};

/// Where a run of an iterable resumes: what cursor() of a Handoff holds.
struct IterableCursor {
  std::int64_t next = 0;             ///< the first item not yet given out, or row where an item's samples are its rows
  std::int64_t position = 0;         ///< items that the iterator had given when it was asked for its state
  std::optional<LoaderState> state;  ///< empty where it is that of an earlier cursor, or the iterator has none
  bool is_counted = false;           ///< whether the iterator has none
  ItemMark mark = {};                ///< of the last item given out

  Bytes encode() const;
  /// Whether these are the bytes of one, and not of a corpus's cursor.
  static bool is_one(ByteView bytes);
  /// Reads bytes that may lie. Throws CorruptMessage.
  static IterableCursor decode(ByteView bytes);
};

}  // namespace levada::python
