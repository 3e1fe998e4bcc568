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

/// Where items come from. Shared by the copies of a graph; what it opens is a process's own.
class ItemSource {
 public:
  virtual ~ItemSource() = default;
  /// For people: "corpus.jsonl", "range".
  virtual std::string describe() const = 0;
  /// Whether open() keeps to a Partition by itself, so that what is left out is not even read: by files, byte ranges of
  /// a .jsonl, ranges of an index.
  virtual bool divides() const = 0;
  /// Whether part p of n is items p, p + n, p + 2n, ... of the whole.
  virtual bool divides_in_turns() const { return false; }
  virtual IteratorPtr open(const OpenContext& open_context, Partition partition) const = 0;
};

/// What a stage does when its function throws: the failure is the pipeline's, or the item is left out and counted.
enum class OnError : std::uint8_t { raise, skip };

struct Source {
  std::shared_ptr<const ItemSource> items;
};
struct Map {
  std::function<Item(Item)> function;
  OnError on_error = OnError::raise;
  int threads = 0;  ///< that call the function concurrently, in order; 0: the thread that pulls items calls it
};
struct Filter {
  std::function<bool(const Item&)> predicate;
  OnError on_error = OnError::raise;
};
/// The items of each iterator that `function` makes of an item, one after the other.
struct FlatMap {
  std::function<IteratorPtr(Item)> function;
  OnError on_error = OnError::raise;
};
struct Batch {
  std::int64_t size = 1;
  bool drop_last = false;
};
/// Batches items of similar length. Collects items in buckets by length, and returns a bucket's items as a batch when
/// they are `size` many, or before another one would make them more than `max_tokens`, padded to the longest.
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
/// A buffer of items, of which one drawn at random goes whenever one comes.
struct Shuffle {
  std::int64_t buffer = 1000;
  std::optional<std::uint64_t> seed;  ///< none: drawn from the pipeline's
};
/// Of all items only this copy's part: item i where i mod count is index. Right after a Source that divides, its.
/// Behind another shard it keeps all of them, which are a part already. partition_of() returns which part it keeps.
struct Shard {};
struct Take {
  std::int64_t count = 0;
};
struct Skip {
  std::int64_t count = 0;
};
/// The iterator before it over again, with the seeds of further epochs.
struct Repeat {
  std::optional<std::int64_t> times;  ///< none: endlessly
};
/// Tuples of one item of each; ends with the shortest.
struct Zip {};
/// Returns all items of its first input, then all items of the next.
struct Concat {};
/// When an Interleave ends.
enum class StopAt : std::uint8_t { first_end, last_end };
/// Returns one item at a time, from an input chosen at random.
struct Interleave {
  std::vector<double> weights;  ///< one for each input, above 0; empty: the inputs take turns
  StopAt stop = StopAt::first_end;
  std::optional<std::uint64_t> seed = {};  ///< none: drawn from the pipeline's
};
/// Keeps the items in a file of `folder` when a pass has come to its end; later passes, also of other runs, read them
/// from there, and nothing before it runs. All passes have the same items in the same order, so what draws at random
/// comes after it. Each part that shards before it make has its own file.
struct Cache {
  std::string folder;
  std::string key;  ///< whatever else decides the items, such as the version of a function before it
};
/// Gives each item to each Branch of it, of which it keeps `buffer`. A branch that is so far ahead of another waits if
/// the other is read on another thread, of a Prefetch; otherwise, and where all threads wait, the pipeline fails with
/// an InvalidArgument that names both branches and the buffer.
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
/// What stands before it must not be copied into workers. The identity where there are none.
struct Dispatch {};
/// All ranks stop at the end of the shortest, and fail with the first that fails.
struct FullSync {};
/// Anything else that makes one iterator of one or several, such as another library's.
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
  std::vector<int> colocated;  ///< numbers of stages after it that it holds on to: see Graph::tie()
};

/// A stage and all that comes before it. A value; cheap to copy. Building on one leaves it as it is.
class Graph {
 public:
  /// Throws InvalidArgument where `items` is null.
  static Graph source(std::shared_ptr<const ItemSource> items, std::string name = {});

  /// This graph with one more stage at its end. An empty `name` becomes the operation's, numbered where there is one of
  /// that name already ("map", "map_2"). Throws InvalidArgument, naming the stage: a name that is taken, a number out
  /// of range, an operation that needs other inputs.
  Graph then(Operation operation, std::string name = {}) const;
  /// Stages with several inputs. What graphs have in common, such as two branches of one fork, stays one; names that
  /// were not given are numbered anew. Throws as then() does, and for a stage whose items two stages would take that
  /// are no branches of it.
  static Graph join(Operation operation, const std::vector<Graph>& inputs, std::string name = {});
  /// The branches of a fork at the end of this.
  std::vector<Graph> fork(std::int64_t branches = 2, std::int64_t buffer = 1000, std::string name = {}) const;
  /// The same, but stage `first` also holds on to `last`, which its items reach, as objects of other libraries do that
  /// refer to each other in a circle: one process runs both, with all that is between. Throws InvalidArgument.
  Graph colocate(std::string_view first, std::string_view last) const;

  /// In an order in which inputs come first; the last is the end.
  const std::vector<Stage>& stages() const;
  int end() const { return static_cast<int>(stages().size()) - 1; }
  /// Throws InvalidArgument that lists the names there are.
  int find(std::string_view name) const;

 private:
  struct State;
  explicit Graph(State state);
  std::shared_ptr<const State> state_;
};

}  // namespace levada::pipeline
