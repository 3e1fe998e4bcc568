// A stage that keeps its items in a file, which the first complete pass writes.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/private_files.h"
#include "levada/pipeline/graph_builder.h"
#include "levada/pipeline/item_file.h"
#include "levada/pipeline/open_context.h"
#include "levada/pipeline/show.h"

namespace levada::pipeline {
namespace {

/// Returns the partition of all items that the shards before `stage` keep.
Partition part_before(const StagePlace& at) {
  const auto& graph = at.builder.context()->graph;
  const Reachability reach(graph);
  Partition part;
  for (const int shard : reach.all<Shard>()) {
    if (!reach.feeds(shard, at.stage)) continue;
    const auto partition = partition_of(graph, shard, at.builder.open_context());
    if (partition.count > part.count) part = partition;
  }
  return part;
}

FolderTrust trust_in(const Cache& cache) {
  return FolderTrust::of(cache.folder, "the cache of items", "give the cache another folder");
}

/// Describes everything known that the items depend on: the preceding stages, with their inputs, and the key.
std::string origin_of(const StagePlace& at) {
  const auto& graph = at.builder.context()->graph;
  const Reachability reach(graph);
  std::string origin;
  std::map<int, int> numbers;  // the stages that feed this one, renumbered
  for (int stage = 0; stage < at.stage; ++stage) {
    if (!reach.feeds(stage, at.stage)) continue;
    const auto number = static_cast<int>(numbers.size());
    numbers.emplace(stage, number);
    const auto& [name, operation, inputs, colocated] = graph.stage(stage);
    const auto* source = std::get_if<Source>(&operation);
    origin += source == nullptr ? describe(operation) : "source " + source->items->identity();
    for (const int input : inputs) {
      if (inputs.size() > 1 || numbers.at(input) != number - 1) origin += fmt::format(" @{}", numbers.at(input));
    }
    origin += "; ";
  }
  return origin + "key \"" + std::get<Cache>(at.builder.context()->stage(at.stage).operation).key + '"';
}

/// Reads a pass's items from the file if it exists when the pass is opened, otherwise from the preceding stages.
class CacheIterator final : public StageIterator {
 public:
  CacheIterator(GraphContextPtr context, int stage, StagePtr input, std::unique_ptr<ItemFile> file, std::string path,
                std::string origin)
      : StageIterator(std::move(context), stage, std::move(input)),
        file_(std::move(file)),
        path_(std::move(path)),
        origin_(std::move(origin)) {}

  void conclude() override {
    if (!writer_ || has_failed()) return StageIterator::conclude();
    try {
      if (!input_->next()) writer_->finish();
    } catch (const StageFailed&) {
      // An item that is not requested cannot be made, so the items are incomplete.
    }
    writer_.reset();
    StageIterator::conclude();
  }

 private:
  std::optional<Item> make() override {
    if (file_) return read();
    if (num_inputs_ == 0) start_writing();
    skip_missed();
    auto item = pull();
    if (writer_) guarded([&] { item ? writer_->add(context_->traits.to_tree(*item)) : writer_->finish(); });
    if (!item) writer_.reset();
    return item;
  }

  std::optional<Item> read() {
    if (num_inputs_ == file_->size()) return std::nullopt;
    const auto at = static_cast<std::size_t>(num_inputs_ - first_);
    if (num_inputs_ < first_ || at >= items_.size()) {
      guarded([&] {
        auto chunk = file_->read(num_inputs_);
        items_ = context_->traits.from_trees(std::move(chunk.items));
        first_ = chunk.first;
      });
    }
    return std::move(items_[static_cast<std::size_t>(num_inputs_++ - first_)]);
  }

  /// Does nothing if another process is writing the file, or has written it since this pass was opened.
  void start_writing() {
    guarded([&] {
      create_private_folder(operation<Cache>().folder);
      try {
        writer_.emplace(path_, origin_, trust_in(operation<Cache>()).file_mode());
      } catch (const FileBusy&) {
        return;
      }
      std::error_code error;
      if (std::filesystem::exists(path_, error)) writer_.reset();
    });
  }

  std::int64_t skip_impl(std::int64_t items) override {
    if (file_) {
      const auto passed = std::min(items, file_->size() - num_inputs_);
      num_inputs_ += passed;
      return passed;
    }
    writer_.reset();
    skip_missed();
    return skip_input(items);
  }

  /// Skips the items that a restored state has passed over. A state saved by a pass that read the file lacks the state
  /// of the preceding stages.
  void skip_missed() {
    if (const auto missed = std::exchange(missed_, 0); missed > 0) input_->skip(missed);
  }

  SavedState saved() const override { return {file_ || missed_ > 0 ? std::vector<Tree>() : input_->entries(), {}}; }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    if (file_) {
      if (num_inputs_ > file_->size()) own.fail(fmt::format("{} has {} items", path_, file_->size()));
    } else if (before.empty()) {
      missed_ = num_inputs_;
    } else {
      input_->restore_entries(before);
    }
  }
  void release() override {
    StageIterator::release();
    writer_.reset();
    file_.reset();
    items_.clear();
  }

  std::unique_ptr<ItemFile> file_;
  std::string path_, origin_;
  std::optional<ItemFileWriter> writer_;
  std::vector<Item> items_;  ///< the chunk read last
  std::int64_t first_ = 0;   ///< number of its first item
  std::int64_t missed_ = 0;  ///< items that the preceding stages have yet to skip
};

/// Returns null if the file does not exist.
std::unique_ptr<ItemFile> open_if_there(const std::string& path, const std::string& origin, const FolderTrust& trust) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return nullptr;
  auto file = std::make_unique<ItemFile>(open_trusted_file(path, trust));
  if (file->origin() == origin) return file;
  throw InvalidArgument(fmt::format(
      "{} has the items of another pipeline ({}), not of this one ({}); remove it, or give the cache another folder",
      path, file->origin(), origin));
}

}  // namespace

StagePtr make_stage(const Cache& cache, const StagePlace& at) {
  const auto part = part_before(at);
  const auto path = fmt::format("{}/part-{}-of-{}.items", cache.folder, part.index, part.count);
  const auto trust = trust_in(cache);
  auto origin = origin_of(at);
  auto file = open_if_there(path, origin, trust);
  auto input = file ? nullptr : at.input();
  return at.make<CacheIterator>(std::move(input), std::move(file), path, std::move(origin));
}

}  // namespace levada::pipeline
