#include "levada/pipeline/pipeline_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/pipeline/collate.h"
#include "levada/pipeline/cursors.h"

namespace levada::pipeline {
namespace {

constexpr std::string_view cursor_kind = "pipeline samples";

/// An epoch of a consumer, begun when its first item is requested.
class ConsumerEpoch final : public Iterator {
 public:
  ConsumerEpoch(std::shared_ptr<Consumer> consumer, std::int64_t epoch)
      : consumer_(std::move(consumer)), epoch_(epoch) {}

  std::optional<Item> next() override {
    begin({});
    return consumer_->next();
  }
  Cursor save() const override {
    begin({});
    return consumer_->save();
  }
  void restore(const Cursor& cursor) override { begin(cursor); }

 private:
  void begin(const std::optional<Cursor>& cursor) const {
    if (!std::exchange(begun_, true)) consumer_->reset(epoch_, cursor);
  }

  std::shared_ptr<Consumer> consumer_;
  std::int64_t epoch_;
  mutable bool begun_ = false;
};

}  // namespace

std::function<IteratorPtr(std::int64_t epoch)> epochs_of(std::shared_ptr<Consumer> consumer) {
  return [consumer](std::int64_t epoch) { return std::make_unique<ConsumerEpoch>(consumer, epoch); };
}

PipelineSource::PipelineSource(std::function<IteratorPtr(std::int64_t epoch)> open_epoch, PipelineSourceOptions options)
    : open_epoch_(std::move(open_epoch)), options_(std::move(options)) {
  if (options_.epochs < 0) throw InvalidArgument(fmt::format("a pipeline cannot have {} epochs", options_.epochs));
}

std::int64_t PipelineSource::resume(ByteView cursor) {
  const Tree tree = unpack_cursor(cursor);
  const CursorFields fields(tree, cursor_kind);
  const auto sample = fields.count("sample"), skip = fields.count("skip"), epoch = fields.count("epoch");
  if (skip > sample) fields.fail(fmt::format("it skips {} of only {} samples", skip, sample));
  begin_epoch(epoch);
  if (fields.has("stream")) iterator_->restore(fields.at("stream"));
  read_in_epoch_ = fields.count("num_outputs");
  next_ = sample - skip;
  return sample;
}

std::optional<std::int64_t> PipelineSource::size() const {
  return ended_ ? std::optional(next_.load()) : std::nullopt;
}

std::optional<Tree> PipelineSource::read(std::int64_t first, std::int64_t count, Memory& memory) {
  std::vector<Tree> samples;
  const bool again = first == next_ - 1 && last_;
  if (first < next_ && !again) {
    throw InvalidArgument(
        fmt::format("sample {} of {} has already been read; the next is {}", first, options_.what, next_.load()));
  }
  if (again) samples.push_back(*last_);
  while (next_ < first) {
    auto skipped = next_sample();
    if (!skipped) break;
    last_ = std::move(skipped);
  }
  history_.keep_from(first);
  while (static_cast<std::int64_t>(samples.size()) < count) {
    auto sample = next_sample();
    if (!sample) break;
    samples.push_back(std::move(*sample));
  }
  if (samples.empty()) return std::nullopt;
  last_ = samples.back();
  return collate(samples, first, memory);
}

std::optional<Tree> PipelineSource::next_sample() {
  while (!ended_) {
    if (iterator_ == nullptr && !open_next()) break;
    if (history_.due()) history_.mark(next_, [this] { return mark(); });
    marked_ = true;
    auto item = iterator_->next();
    if (!item) {
      iterator_.reset();
      continue;
    }
    auto* tree = std::get_if<Tree>(&*item);
    if (tree == nullptr) {
      throw Unsupported(fmt::format("sample {} of {} is an object of another language; map it to tensors", next_.load(),
                                    options_.what));
    }
    ++next_;
    ++read_in_epoch_;
    return std::move(*tree);
  }
  return std::nullopt;
}

/// Returns false at the end of all epochs.
bool PipelineSource::open_next() {
  const bool empty = epoch_ >= 0 && read_in_epoch_ == 0;
  ended_ = empty || (options_.epochs > 0 && epoch_ + 1 >= options_.epochs);
  if (!ended_) begin_epoch(epoch_ + 1);
  return !ended_;
}

void PipelineSource::begin_epoch(std::int64_t epoch) {
  iterator_ = open_epoch_(epoch);
  epoch_ = epoch;
  read_in_epoch_ = 0;
}

Cursor PipelineSource::mark() const {
  std::vector<std::pair<Key, Tree>> fields = {{"stage", std::string(cursor_kind)},
                                              {"epoch", std::max<std::int64_t>(epoch_, 0)},
                                              {"num_outputs", read_in_epoch_}};
  if (iterator_) fields.emplace_back("stream", iterator_->save());
  return Tree::dict(std::move(fields));
}

Bytes PipelineSource::cursor(std::int64_t next) const {
  const auto point = marked_ ? history_.at(next) : SnapshotLog::Point{mark(), next - next_};
  Container fields = point.cursor.container();
  fields.keys.insert(fields.keys.end(), {"sample", "skip"});
  fields.children.emplace_back(next);
  fields.children.emplace_back(point.skip);
  return pack_cursor(Tree(std::move(fields)));
}

std::string PipelineSource::activity() const {
  return fmt::format("making sample {} of {}, epoch {}", next_.load(), options_.what,
                     std::max<std::int64_t>(epoch_, 0));
}

}  // namespace levada::pipeline
