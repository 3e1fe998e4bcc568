#include "levada/pipeline/item_sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "levada/base/error.h"
#include "levada/base/urls.h"
#include "levada/pipeline/collate.h"
#include "levada/pipeline/cursors.h"

namespace levada::pipeline {
namespace {

/// A partition of `size` numbered items: those with numbers p, p + n, ...
template <typename At>
class NumberedIterator final : public Iterator {
 public:
  NumberedIterator(std::int64_t size, Partition partition, At at)
      : left_(size > partition.index ? (size - partition.index - 1) / partition.count + 1 : 0),
        size_(left_),
        partition_(partition),
        at_(std::move(at)) {}

  std::optional<Item> next() override {
    if (left_ == 0) return std::nullopt;
    const auto number = partition_.index + partition_.count * (size_ - left_);
    --left_;
    return at_(number);
  }
  std::int64_t skip(std::int64_t items) override {
    const auto passed = std::min(items, left_);
    left_ -= passed;
    return passed;
  }
  Cursor save() const override { return Tree(size_ - left_); }
  void restore(const Cursor& cursor) override { left_ = size_ - position_in(cursor, size_); }

 private:
  std::int64_t left_, size_;
  Partition partition_;
  At at_;
};

template <typename At>
IteratorPtr numbered(std::int64_t size, Partition partition, At at) {
  return std::make_unique<NumberedIterator<At>>(size, partition, std::move(at));
}

class Range final : public ItemSource {
 public:
  Range(std::int64_t begin, std::int64_t end, std::int64_t step) : begin_(begin), step_(step) {
    if (step == 0) throw InvalidArgument("the step of a range must not be 0");
    const bool empty = step > 0 ? begin >= end : begin <= end;
    if (empty) return;
    const auto from = static_cast<std::uint64_t>(begin), to = static_cast<std::uint64_t>(end);
    const auto width = step > 0 ? to - from : from - to;
    const auto stride = step > 0 ? static_cast<std::uint64_t>(step) : -static_cast<std::uint64_t>(step);
    const auto size = (width - 1) / stride + 1;
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      throw InvalidArgument(fmt::format("a range from {} to {} has more than 2^63 - 1 numbers", begin, end));
    }
    size_ = static_cast<std::int64_t>(size);
  }

  std::string describe() const override { return fmt::format("range of {}", size_); }
  bool divides() const override { return true; }
  bool divides_in_turns() const override { return true; }
  IteratorPtr open(const OpenContext&, Partition partition) const override {
    // Unsigned, because the distance between the ends of a range may exceed a signed number.
    return numbered(
        size_, partition,
        [begin = static_cast<std::uint64_t>(begin_), step = static_cast<std::uint64_t>(step_)](std::int64_t i) {
          return Tree(static_cast<std::int64_t>(begin + static_cast<std::uint64_t>(i) * step));
        });
  }

 private:
  std::int64_t begin_, step_, size_ = 0;
};

class Trees final : public ItemSource {
 public:
  explicit Trees(std::vector<Tree> trees) : trees_(std::make_shared<const std::vector<Tree>>(std::move(trees))) {}

  std::string describe() const override { return fmt::format("{} items", trees_->size()); }
  bool divides() const override { return true; }
  bool divides_in_turns() const override { return true; }
  IteratorPtr open(const OpenContext&, Partition partition) const override {
    return numbered(static_cast<std::int64_t>(trees_->size()), partition,
                    [trees = trees_](std::int64_t i) { return (*trees)[static_cast<std::size_t>(i)]; });
  }

 private:
  std::shared_ptr<const std::vector<Tree>> trees_;
};

/// Returns the only sample of a batch.
Tree only_sample(const Tree& batch) {
  if (!batch.is_leaf()) {
    auto sample = batch.container();
    for (auto& child : sample.children) child = only_sample(child);
    return sample;
  }
  const auto* tensor = std::get_if<Tensor>(&batch.leaf());
  if (tensor == nullptr || tensor->shape().rank() == 0 || tensor->shape()[0] != 1) return batch;
  const Tensor sample = only_row(*tensor);
  // A borrowed tensor is valid only until the next read.
  return sample.owner() == nullptr ? Tensor::copy_of(sample) : sample;
}

class SampleIterator final : public Iterator {
 public:
  SampleIterator(std::shared_ptr<levada::Source> source, std::shared_ptr<const SampleOptions> options,
                 std::int64_t epoch, Partition partition)
      : source_(std::move(source)), options_(std::move(options)), partition_(partition) {
    const auto per_epoch = options_->per_epoch ? options_->per_epoch(*source_) : std::nullopt;
    if (!per_epoch) return;
    if (__builtin_mul_overflow(epoch, *per_epoch, &first_) || __builtin_add_overflow(first_, *per_epoch, &end_)) {
      throw InvalidArgument(fmt::format("the samples of epoch {}, with {} per epoch, have numbers of more than 63 bits",
                                        epoch, *per_epoch));
    }
  }

  std::optional<Item> next() override {
    const auto sample = first_ + partition_.index + partition_.count * read_;
    if (sample >= end_) return std::nullopt;
    announce();
    const auto batch = source_->read(sample, 1, memory_);
    if (!batch) return std::nullopt;
    ++read_;
    return only_sample(*batch);
  }
  std::int64_t skip(std::int64_t items) override {
    if (!options_->per_epoch) return Iterator::skip(items);
    const auto passed = std::clamp<std::int64_t>(size() - read_, 0, items);
    read_ += passed;
    return passed;
  }

  Cursor save() const override {
    const auto sample = first_ + partition_.index + partition_.count * read_;
    return Tree::dict({{"next", read_}, {"source", source_->cursor(sample)}});
  }
  void restore(const Cursor& cursor) override {
    const bool whole = !cursor.is_leaf() && cursor.contains("next") && cursor.contains("source");
    if (!whole) throw InvalidArgument("the state lacks the number of the next sample or the position of its source");
    const auto next = position_in(cursor.at("next"));
    const auto& source = cursor.at("source");
    const auto* bytes = source.is_leaf() ? std::get_if<Bytes>(&source.leaf()) : nullptr;
    if (next > size() || bytes == nullptr) {
      throw InvalidArgument(fmt::format("the state is of sample {}, which is not in this epoch", next));
    }
    if (options_->resume) static_cast<void>(options_->resume(*source_, *bytes));
    read_ = next;
  }

 private:
  void announce() {
    constexpr std::int64_t ahead = 256;
    const auto end = std::min(read_ + ahead, size());
    for (announced_ = std::max(announced_, read_); announced_ < end; ++announced_) {
      source_->will_read(first_ + partition_.index + partition_.count * announced_, 1);
    }
  }

  /// Returns the size of this partition.
  std::int64_t size() const {
    const auto all = end_ - first_;
    return all > partition_.index ? (all - partition_.index - 1) / partition_.count + 1 : 0;
  }

  std::shared_ptr<levada::Source> source_;
  std::shared_ptr<const SampleOptions> options_;
  Partition partition_;
  HeapMemory memory_;
  std::int64_t first_ = 0, end_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t read_ = 0, announced_ = 0;
};

class Samples final : public ItemSource {
 public:
  Samples(std::function<std::shared_ptr<levada::Source>()> open, SampleOptions options)
      : open_(std::move(open)), options_(std::make_shared<const SampleOptions>(std::move(options))) {}

  std::string describe() const override { return options_->what; }
  std::string identity() const override { return options_->identity.empty() ? options_->what : options_->identity; }
  bool divides() const override { return true; }
  bool divides_in_turns() const override { return true; }
  IteratorPtr open(const OpenContext& open_context, Partition partition) const override {
    return std::make_unique<SampleIterator>(open_(), options_, open_context.epoch, partition);
  }

 private:
  std::function<std::shared_ptr<levada::Source>()> open_;
  std::shared_ptr<const SampleOptions> options_;
};

/// Corpora that are open but not in use by an iterator. A forked process has none, because it lacks their threads.
class IdleCorpora {
 public:
  std::shared_ptr<Corpus> take() {
    const std::lock_guard lock(mutex_);
    if (process_ != ::getpid() || idle_.empty()) return nullptr;
    auto corpus = std::move(idle_.back());
    idle_.pop_back();
    return corpus;
  }
  void put_back(std::shared_ptr<Corpus> corpus) {
    const std::lock_guard lock(mutex_);
    if (process_ != ::getpid()) {
      // Corpora that another process opened are leaked: closing them would wait for threads that a fork does not copy.
      static_cast<void>(new std::vector<std::shared_ptr<Corpus>>(std::move(idle_)));
      idle_.clear();
      process_ = ::getpid();
    }
    idle_.push_back(std::move(corpus));
  }

 private:
  std::mutex mutex_;
  pid_t process_ = ::getpid();
  std::vector<std::shared_ptr<Corpus>> idle_;
};

}  // namespace

std::shared_ptr<const ItemSource> range(std::int64_t begin, std::int64_t end, std::int64_t step) {
  return std::make_shared<const Range>(begin, end, step);
}

std::shared_ptr<const ItemSource> trees(std::vector<Tree> trees) {
  return std::make_shared<const Trees>(std::move(trees));
}

std::shared_ptr<const ItemSource> samples(std::function<std::shared_ptr<levada::Source>()> open,
                                          SampleOptions options) {
  return std::make_shared<const Samples>(std::move(open), std::move(options));
}

namespace {

/// Returns the files and all options that determine the samples.
std::string identity_of(const std::vector<std::string>& paths, const CorpusOptions& options) {
  std::vector<std::string> files;
  for (const auto& path : paths) files.push_back(shown_url(path));
  const auto shuffle = options.shuffle_seed ? std::to_string(*options.shuffle_seed) : "none";
  return fmt::format(
      "corpus {} sequence={} shuffle={} packing={} pad_to={} mask={} reset={},{},{} ids={} split={} part={} "
      "tokenizer={} end={} field={} skip_bad={}",
      fmt::join(files, " "), options.sequence, shuffle, static_cast<int>(options.packing), options.pad_to,
      options.attention_mask, options.reset_position_ids, options.reset_attention_mask, options.eod_mask_loss,
      options.ids.name(), fmt::join(options.split, ","), options.part,
      options.tokenizer ? options.tokenizer->digest() : "none", options.end_of_document, options.text_field,
      options.skip_bad);
}

}  // namespace

std::shared_ptr<const ItemSource> corpus(std::vector<std::string> paths, CorpusOptions options) {
  options.epochs = 0;
  auto what = paths.empty() ? std::string("corpus") : shown_url(paths.front());
  if (paths.size() > 1) what += fmt::format(" and {} more", paths.size() - 1);
  auto identity = identity_of(paths, options);
  const auto idle = std::make_shared<IdleCorpora>();
  const auto open = [idle, paths = std::move(paths), options = std::move(options)] {
    auto opened = idle->take();
    // of_epochs() drops the position at which the corpus was resumed.
    opened = std::make_shared<Corpus>(opened != nullptr ? opened->of_epochs(0) : Corpus::open(paths, options));
    auto* lent = opened.get();
    return std::shared_ptr<levada::Source>(lent, [idle, opened](levada::Source*) { idle->put_back(opened); });
  };
  const auto per_epoch = [](const levada::Source& source) -> std::optional<std::int64_t> {
    return dynamic_cast<const Corpus&>(source).sequences();
  };
  const auto resume = [](levada::Source& source, ByteView cursor) {
    return dynamic_cast<Corpus&>(source).resume(cursor);
  };
  return samples(open,
                 {.what = std::move(what), .identity = std::move(identity), .per_epoch = per_epoch, .resume = resume});
}

}  // namespace levada::pipeline
