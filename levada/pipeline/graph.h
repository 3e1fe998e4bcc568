// A pipeline as a value: named stages, and which comes before which.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "levada/corpus/packing.h"
#include "levada/pipeline/iterator.h"

namespace levada::pipeline {

/// Where items come from. The copies of a graph share it; each process opens its own iterators.
class ItemSource {
 public:
  virtual ~ItemSource() = default;
  /// For people: "corpus.jsonl", "range".
  virtual std::string describe() const = 0;
  /// Returns a text that names the source and the options that decide its items, as far as they are known.
  virtual std::string identity() const { return describe(); }
  /// Returns whether open() yields only its Partition, so that other items are not even read: by files, byte ranges of
  /// a .jsonl, ranges of an index.
  virtual bool divides() const = 0;
  /// Returns whether partition p of n has items p, p + n, p + 2n, ... of the whole.
  virtual bool divides_in_turns() const { return false; }
  virtual IteratorPtr open(const OpenContext& open_context, Partition partition) const = 0;
};

/// What a stage does when its function throws: the pipeline fails, or the stage leaves the item out and counts it.
enum class OnError : std::uint8_t { raise, skip };

struct Source {
  std::shared_ptr<const ItemSource> items;
};
struct Map {
  std::function<Item(Item)> function;
  OnError on_error = OnError::raise;
  int threads = 0;  ///< threads that call the function concurrently; 0: the thread that pulls items calls it
};
struct Filter {
  std::function<bool(const Item&)> predicate;
  OnError on_error = OnError::raise;
};
/// Calls `function` on each item, and yields the items of the iterators that it returns.
struct FlatMap {
  std::function<IteratorPtr(Item)> function;
  OnError on_error = OnError::raise;
};
struct Batch {
  std::int64_t size = 1;
  bool drop_last = false;
};
/// Batches items of similar length. Collects items in buckets by length. Yields a bucket's items as a batch when there
/// are `size` of them, or before another item would make them more than `max_tokens`, padded to the longest.
struct BucketBatch {
  std::function<std::int64_t(const Item&)> length;
  std::vector<std::int64_t> boundaries;   ///< increasing; bucket i has lengths from boundary i - 1 to below boundary i
  std::optional<std::int64_t> size = {};  ///< this or max_tokens is required
  std::optional<std::int64_t> max_tokens = {};
  bool drop_last = false;  ///< drops partial batches at the end; else they are returned, shortest bucket first
};
struct Unbatch {};

/// What cutting does with tokens at the end that do not fill a row.
enum class PartialRow : std::uint8_t { pad, drop };
/// What best fit does with a document of more positions than a row has.
enum class LongDocument : std::uint8_t { cut, error };

/// Makes rows of documents. A row is a dict of the tensors that Corpus has for packed samples, without the dimension of
/// rows. A document is a tensor of tokens, or a dict of one and of other fields, which have an element for each token
/// and are packed with it. docs/design/pipeline.md describes both methods.
struct Pack {
  std::int64_t sequence = 4096;
  Packing method = Packing::cut;
  std::int64_t buffer = 1000;                      ///< best fit: documents that it chooses from
  std::int64_t pad_to = 1;                         ///< segments are padded to multiples of it; divides sequence
  PartialRow partial = PartialRow::pad;            ///< cut
  LongDocument too_long = LongDocument::cut;       ///< best fit
  std::optional<std::int64_t> max_documents = {};  ///< best fit: in a row; none: default_max_documents()
  std::string tokens = "tokens";                   ///< the field of the tokens, where documents are dicts
  DType ids = dtypes::int64;                       ///< of tokens, labels and position_ids: int64 or int32

  /// Returns one for 32 positions, and at least 64, but no more than fit.
  std::int64_t default_max_documents() const;
};
/// Yields items in random order: each new item replaces a random one in a buffer, which is yielded.
struct Shuffle {
  std::int64_t buffer = 1000;
  std::optional<std::uint64_t> seed;  ///< none: derived from the pipeline's
};
/// Keeps this copy's partition: items i with i mod count = index. Directly after a Source that divides, the source
/// yields only the partition. After another shard it keeps all items. partition_of() returns the partition.
struct Shard {};
struct Take {
  std::int64_t count = 0;
};
struct Skip {
  std::int64_t count = 0;
};
/// Repeats its input, with the seeds of further epochs.
struct Repeat {
  std::optional<std::int64_t> times;  ///< none: endlessly
};
/// Yields tuples of one item of each input; ends with the shortest.
struct Zip {};
/// Returns all items of its first input, then all items of the next.
struct Concat {};
/// When an Interleave ends: when an input ends, when all have, or when each has ended once and those that ended before
/// the others have begun again. The latter takes inputs that are endless Repeats.
enum class StopAt : std::uint8_t { first_end, last_end, full_cycle };
/// Returns one item at a time, from an input chosen at random.
struct Interleave {
  std::vector<double> weights;  ///< one for each input, above 0; empty: the inputs take turns
  StopAt stop = StopAt::first_end;
  std::optional<std::uint64_t> seed = {};  ///< none: drawn from the pipeline's
};
/// Writes the items to a file in `folder` during the first complete pass. Later passes, also of other runs, read them
/// from there, and the stages before it do not run. All passes have the same items in the same order, so random stages
/// belong after it. Each partition of a shard before it has its own file.
struct Cache {
  std::string folder;
  std::string key;  ///< whatever else decides the items, such as the version of a function before it
};
/// Yields each item to each of its branches, and buffers `buffer` items. A branch that is that far ahead of another
/// waits if the other is read on another thread, of a Prefetch. Otherwise, and if all threads wait, the pipeline fails
/// with an InvalidArgument that names both branches and the buffer.
struct Fork {
  std::int64_t branches = 2;
  std::int64_t buffer = 1000;
};
struct Branch {
  std::int64_t index = 0;
};
/// Makes items ahead, on a thread of its own.
struct Prefetch {
  std::int64_t depth = 10;
};
/// Marks its input as not to be copied into workers. Without workers it is the identity.
struct Dispatch {};
/// Makes all ranks stop when the shortest one ends, and fail when the first one fails.
struct FullSync {};
/// Any other function from iterators to one iterator, such as another library's stage.
struct Transform {
  std::string what;  ///< for people
  std::function<IteratorPtr(std::vector<IteratorPtr> inputs, const OpenContext& open_context)> open;
};

using Operation =
    std::variant<Source, Map, Filter, FlatMap, Batch, BucketBatch, Unbatch, Pack, Shuffle, Shard, Take, Skip, Repeat,
                 Zip, Concat, Interleave, Cache, Fork, Branch, Prefetch, Dispatch, FullSync, Transform>;

/// "source", "flat_map", ...
std::string_view operation_name(const Operation& operation);

struct Stage {
  std::string name;  ///< unique in its graph
  Operation operation;
  std::vector<int> inputs;     ///< numbers of the stages before it, all smaller than its own
  std::vector<int> colocated;  ///< numbers of later stages that run in the same process: see Graph::colocate()
};

/// A stage and all stages before it. An immutable value; cheap to copy.
class Graph {
 public:
  /// Throws InvalidArgument where `items` is null.
  static Graph source(std::shared_ptr<const ItemSource> items, std::string name = {});

  /// Returns this graph with one more stage at its end. An empty `name` becomes the operation's, numbered if that name
  /// is taken ("map", "map_2"). Throws InvalidArgument, naming the stage, for a name that is taken, a number out of
  /// range, and an operation that needs other inputs.
  Graph then(Operation operation, std::string name = {}) const;
  /// Returns a graph that ends in a stage with several inputs. Stages that the inputs have in common, such as a fork of
  /// two branches, remain one stage; default names are numbered again. Throws as then() does, and if two stages other
  /// than branches would take the items of one stage.
  static Graph join(Operation operation, const std::vector<Graph>& inputs, std::string name = {});
  /// Returns the branches of a fork at the end of this graph.
  std::vector<Graph> fork(std::int64_t branches = 2, std::int64_t buffer = 1000, std::string name = {}) const;
  /// Returns this graph with the constraint that one process runs the stages `first` and `last` and all between them,
  /// for example because `first` refers to the object of `last`. Throws InvalidArgument unless items of `first` reach
  /// `last`.
  Graph colocate(std::string_view first, std::string_view last) const;

  /// Returns the stages, inputs first; the last one is the end.
  const std::vector<Stage>& stages() const;
  const Stage& stage(int number) const { return stages()[static_cast<std::size_t>(number)]; }
  int end() const { return static_cast<int>(stages().size()) - 1; }
  /// Returns the number of a stage. Throws InvalidArgument that lists all names.
  int find(std::string_view name) const;

 private:
  struct State;
  explicit Graph(State state);
  std::shared_ptr<const State> state_;
};

}  // namespace levada::pipeline
