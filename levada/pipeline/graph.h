// A pipeline as a value: named stages and their inputs.
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

/// A source of items. Copies of a graph share it; each process opens its own iterators.
class ItemSource {
 public:
  virtual ~ItemSource() = default;
  /// Returns a short human-readable description: "corpus.jsonl", "range".
  virtual std::string describe() const = 0;
  /// Returns a text that identifies the source and, as far as they are known, the options that determine its items.
  virtual std::string identity() const { return describe(); }
  /// Returns whether open() yields only the items of its Partition without reading the others, because the source is
  /// divided by files, byte ranges of a .jsonl, or ranges of an index.
  virtual bool divides() const = 0;
  /// Returns whether partition p of n consists of items p, p + n, p + 2n, ... of the whole.
  virtual bool divides_in_turns() const { return false; }
  virtual IteratorPtr open(const OpenContext& open_context, Partition partition) const = 0;
};

/// The reaction to an exception thrown by a stage's function: the pipeline fails, or the stage drops and counts the
/// item.
enum class OnError : std::uint8_t { raise, skip };

struct Source {
  std::shared_ptr<const ItemSource> items;
};
struct Map {
  std::function<Item(Item)> function;
  OnError on_error = OnError::raise;
  int threads = 0;  ///< threads that call the function concurrently; 0: the pulling thread calls it
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
/// Batches items of similar length. Collects items in buckets by length. Yields a bucket as a batch once it holds
/// `size` items, or when one more item would make the batch, padded to its longest item, larger than `max_tokens`.
struct BucketBatch {
  std::function<std::int64_t(const Item&)> length;
  std::vector<std::int64_t> boundaries;   ///< increasing; bucket i holds lengths in [boundary i - 1, boundary i)
  std::optional<std::int64_t> size = {};  ///< this or max_tokens is required
  std::optional<std::int64_t> max_tokens = {};
  bool drop_last = false;  ///< whether to drop partial batches at the end; else yields them, shortest bucket first
};
struct Unbatch {};

/// The treatment of tokens at the end that do not fill a row, for Packing::cut.
enum class PartialRow : std::uint8_t { pad, drop };
/// The treatment of a document that has more positions than a row, for best fit.
enum class LongDocument : std::uint8_t { cut, error };

/// Packs documents into rows. A row is a dict of the tensors that Corpus yields for packed samples, without the row
/// dimension. A document is a tensor of tokens, or a dict of such a tensor and other fields. These fields have one
/// element per token and are packed with it. docs/design/pipeline.md describes both methods.
struct Pack {
  std::int64_t sequence = 4096;
  Packing method = Packing::cut;
  std::int64_t buffer = 1000;                      ///< best fit: number of documents to choose from
  std::int64_t pad_to = 1;                         ///< divisor of padded segment lengths; must divide sequence
  PartialRow partial = PartialRow::pad;            ///< for cut
  LongDocument too_long = LongDocument::cut;       ///< for best fit
  std::optional<std::int64_t> max_documents = {};  ///< best fit: limit per row; none: default_max_documents()
  std::string tokens = "tokens";                   ///< name of the token field, if documents are dicts
  DType ids = dtypes::int64;                       ///< dtype of tokens, labels and position_ids: int64 or int32

  /// Returns one document per 32 positions, and at least 64, but no more than fit in a row.
  std::int64_t default_max_documents() const;
};
/// Yields items in random order: each new item replaces a random item in a buffer, which is then yielded.
struct Shuffle {
  std::int64_t buffer = 1000;
  std::optional<std::uint64_t> seed;  ///< none: derived from the pipeline's seed
};
/// Keeps this copy's partition: items i with i mod count = index. Directly after a Source that divides, the source
/// yields only the partition. After another shard it keeps all items. See partition_of().
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
/// Yields tuples of one item from each input; ends with the shortest input.
struct Zip {};
/// Yields all items of its first input, then all items of the next.
struct Concat {};
/// The condition that ends an Interleave: the first input has ended, all inputs have ended, or each input has ended at
/// least once. In the last mode, inputs that end early begin again, so all inputs must be endless Repeats.
enum class StopAt : std::uint8_t { first_end, last_end, full_cycle };
/// Yields one item at a time, from an input chosen at random or in turn.
struct Interleave {
  std::vector<double> weights;  ///< one per input, above 0; empty: the inputs take turns
  StopAt stop = StopAt::first_end;
  std::optional<std::uint64_t> seed = {};  ///< none: derived from the pipeline's seed
};
/// Writes the items to a file in `folder` during the first complete pass. Later passes, including those of other runs,
/// read the items from the file, and the stages before the cache do not run. All passes yield the same items in the
/// same order, so random stages belong after the cache. Each partition of a preceding shard has a separate file.
struct Cache {
  std::string folder;
  std::string key;  ///< anything else that determines the items, such as the version of a function before the cache
};
/// Yields each item to each of its branches, and buffers up to `buffer` items. A branch that is `buffer` items ahead of
/// another one waits if a Prefetch reads the other branch on a different thread. If not, or if all threads wait, the
/// pipeline fails with an InvalidArgument that names both branches and the buffer.
struct Fork {
  std::int64_t branches = 2;
  std::int64_t buffer = 1000;
};
struct Branch {
  std::int64_t index = 0;
};
/// Makes items ahead of demand on a separate thread.
struct Prefetch {
  std::int64_t depth = 10;
};
/// Marks its input as not to be copied into workers. Has no effect without workers.
struct Dispatch {};
/// Makes all ranks stop when the shortest one ends, and fail when the first one fails.
struct FullSync {};
/// Any other function from iterators to one iterator, such as another library's stage.
struct Transform {
  std::string what;  ///< human-readable description
  std::function<IteratorPtr(std::vector<IteratorPtr> inputs, const OpenContext& open_context)> open;
};

using Operation =
    std::variant<Source, Map, Filter, FlatMap, Batch, BucketBatch, Unbatch, Pack, Shuffle, Shard, Take, Skip, Repeat,
                 Zip, Concat, Interleave, Cache, Fork, Branch, Prefetch, Dispatch, FullSync, Transform>;

/// Returns "source", "flat_map", ...
std::string_view operation_name(const Operation& operation);

struct Stage {
  std::string name;  ///< unique in its graph
  Operation operation;
  std::vector<int> inputs;     ///< numbers of its input stages, all smaller than its own
  std::vector<int> colocated;  ///< numbers of later stages that run in the same process: see Graph::colocate()
};

/// A stage and all stages before it. An immutable value; cheap to copy.
class Graph {
 public:
  /// Throws InvalidArgument if `items` is null.
  static Graph source(std::shared_ptr<const ItemSource> items, std::string name = {});

  /// Returns this graph with one more stage at its end. An empty `name` defaults to the operation's name, numbered if
  /// that is taken ("map", "map_2"). Throws InvalidArgument, naming the stage, for a name that is taken, a number out
  /// of range, and an operation that needs other inputs.
  Graph then(Operation operation, std::string name = {}) const;
  /// Returns a graph that ends in a stage with several inputs. Stages that the inputs share, such as a fork of two
  /// branches, remain one stage; default names are renumbered. Throws as then() does, and if two stages other than
  /// branches would take the items of one stage.
  static Graph join(Operation operation, const std::vector<Graph>& inputs, std::string name = {});
  /// Returns the branches of a fork added at the end of this graph.
  std::vector<Graph> fork(std::int64_t branches = 2, std::int64_t buffer = 1000, std::string name = {}) const;
  /// Returns this graph with the constraint that one process runs `first`, `last` and all stages between them, for
  /// example because `first` refers to the object of `last`. Throws InvalidArgument unless items of `first` reach
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
