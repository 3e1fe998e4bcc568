// Iterators from outside the graph: of a source, of another process, of another library.
#include "levada/pipeline/graph_builder.h"

namespace levada::pipeline {
namespace {

/// Reports the iterator's failures as the stage's.
class ForeignIterator : public StageIterator {
 public:
  ForeignIterator(GraphContextPtr context, int stage, IteratorPtr iterator)
      : StageIterator(std::move(context), stage, nullptr), iterator_(std::move(iterator)) {}

 protected:
  std::optional<Item> make() override {
    auto item = guarded([this] { return iterator_->next(); });
    num_inputs_ += item.has_value();
    return item;
  }
  IteratorPtr iterator_;

 private:
  std::int64_t skip_impl(std::int64_t items) override {
    const auto passed = guarded([&] { return iterator_->skip(items); });
    num_inputs_ += passed;
    return passed;
  }
  std::int64_t item_number() const override { return num_inputs_; }
  SavedState saved() const override { return {{}, {{"at", iterator_->save()}}}; }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    if (!before.empty()) own.fail("other entries precede it");
    iterator_->restore(own.at("at"));
  }
  void release() override { iterator_.reset(); }
};

/// The process that runs the stage counts its items and names its failures.
class GivenIterator final : public ForeignIterator {
 public:
  GivenIterator(GraphContextPtr context, int stage, IteratorPtr iterator)
      : ForeignIterator(std::move(context), stage, std::move(iterator)) {
    counts_ = &elsewhere_;
  }

 private:
  std::optional<Item> make() override {
    auto item = iterator_->next();
    num_inputs_ += item.has_value();
    return item;
  }
  std::int64_t skip_impl(std::int64_t items) override { return make_and_drop(items); }

  StageCounts elsewhere_;
};

class TransformIterator final : public ForeignIterator {
 public:
  TransformIterator(GraphContextPtr context, int stage, std::vector<StagePtr> inputs, const OpenContext& open_context)
      : ForeignIterator(std::move(context), stage, nullptr), link_(std::make_shared<Link>()) {
    link_->to = this;
    std::vector<IteratorPtr> iterators;
    for (auto& input : inputs) iterators.push_back(std::make_unique<Input>(std::move(input), link_));
    iterator_ = guarded([&] { return operation<Transform>().open(std::move(iterators), open_context); });
  }
  ~TransformIterator() override {
    link_->to = nullptr;
    iterator_.reset();
  }
  TransformIterator(const TransformIterator&) = delete;
  TransformIterator& operator=(const TransformIterator&) = delete;

 private:
  struct Link {
    TransformIterator* to = nullptr;
    std::exception_ptr thrown;  ///< by an input
  };

  /// An input as the transform receives it. The transform may keep it beyond this stage's lifetime.
  class Input final : public Iterator {
   public:
    Input(StagePtr iterator, std::shared_ptr<Link> link) : iterator_(std::move(iterator)), link_(std::move(link)) {}

    std::optional<Item> next() override {
      try {
        if (link_->to == nullptr) return iterator_->next();
        return link_->to->waited([this] { return iterator_->next(); });
      } catch (...) {
        link_->thrown = std::current_exception();
        throw;
      }
    }
    Cursor save() const override { return iterator_->save(); }
    void restore(const Cursor& cursor) override { iterator_->restore(cursor); }

   private:
    StagePtr iterator_;
    std::shared_ptr<Link> link_;
  };

  std::optional<Item> make() override {
    try {
      return ForeignIterator::make();
    } catch (const StageFailed& failed) {
      // An input's failure may have passed through another language, so the original is rethrown.
      if (link_->thrown && failed.failure().stage == stage().name) std::rethrow_exception(link_->thrown);
      throw;
    } catch (...) {
      if (link_->thrown) std::rethrow_exception(link_->thrown);
      throw;
    }
  }
  std::int64_t skip_impl(std::int64_t items) override { return make_and_drop(items); }

  std::shared_ptr<Link> link_;
};

}  // namespace

StagePtr make_given(const StagePlace& at, IteratorPtr iterator) {
  return at.make<GivenIterator>(std::move(iterator));
}
StagePtr make_foreign(const StagePlace& at, IteratorPtr iterator) {
  return at.make<ForeignIterator>(std::move(iterator));
}
StagePtr make_stage(const Transform&, const StagePlace& at) {
  return at.make<TransformIterator>(at.inputs(), at.builder.open_context());
}

}  // namespace levada::pipeline
