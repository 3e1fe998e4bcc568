// Streams that are not the graph's own: of an origin, of another process, of another library.
#include "levada/pipeline/streams.h"

namespace levada::pipeline {
namespace {

/// Its failures are the stage's.
class ForeignStream : public StageStream {
 public:
  ForeignStream(GraphContextPtr context, int stage, StreamPtr stream)
      : StageStream(std::move(context), stage, nullptr), stream_(std::move(stream)) {}

 protected:
  std::optional<Item> make() override {
    auto item = guarded([this] { return stream_->next(); });
    given_ += item.has_value();
    return item;
  }
  StreamPtr stream_;

 private:
  std::int64_t pass_over(std::int64_t items) override {
    const auto passed = guarded([&] { return stream_->skip(items); });
    given_ += passed;
    return passed;
  }
  std::int64_t item_number() const override { return given_; }
  Saved saved() const override { return {{}, {{"at", stream_->save()}}}; }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    if (!before.empty()) own.refuse("something comes before it");
    stream_->restore(own.at("at"));
  }
  void release() override { stream_.reset(); }
};

/// Whoever runs it counts it and names its failures.
class GivenStream final : public ForeignStream {
 public:
  GivenStream(GraphContextPtr context, int stage, StreamPtr stream)
      : ForeignStream(std::move(context), stage, std::move(stream)) {
    counts_ = &elsewhere_;
  }

 private:
  std::optional<Item> make() override {
    auto item = stream_->next();
    given_ += item.has_value();
    return item;
  }
  std::int64_t pass_over(std::int64_t items) override {
    return Stream::skip(items);  // NOLINT(bugprone-parent-virtual-call): item by item, as StageStream asks for here
  }

  StageCounts elsewhere_;
};

class TransformStream final : public ForeignStream {
 public:
  TransformStream(GraphContextPtr context, int stage, std::vector<StagePtr> inputs, const OpenContext& open_context)
      : ForeignStream(std::move(context), stage, nullptr), link_(std::make_shared<Link>()) {
    link_->to = this;
    std::vector<StreamPtr> streams;
    for (auto& input : inputs) streams.push_back(std::make_unique<Input>(std::move(input), link_));
    stream_ = guarded([&] { return operation<Transform>().open(std::move(streams), open_context); });
  }
  ~TransformStream() override {
    link_->to = nullptr;
    stream_.reset();
  }
  TransformStream(const TransformStream&) = delete;
  TransformStream& operator=(const TransformStream&) = delete;

 private:
  struct Link {
    TransformStream* to = nullptr;
    std::exception_ptr thrown;  ///< by an input
  };

  /// An input as the transform gets it, which may keep it for longer than it lives itself.
  class Input final : public Stream {
   public:
    Input(StagePtr stream, std::shared_ptr<Link> link) : stream_(std::move(stream)), link_(std::move(link)) {}

    std::optional<Item> next() override {
      try {
        if (link_->to == nullptr) return stream_->next();
        return link_->to->waited([this] { return stream_->next(); });
      } catch (...) {
        link_->thrown = std::current_exception();
        throw;
      }
    }
    Cursor save() const override { return stream_->save(); }
    void restore(const Cursor& cursor) override { stream_->restore(cursor); }

   private:
    StagePtr stream_;
    std::shared_ptr<Link> link_;
  };

  std::optional<Item> make() override {
    try {
      return ForeignStream::make();
    } catch (const StageFailed& failed) {
      // What has come through another language as an input's failure may be so once only.
      if (link_->thrown && failed.failure().stage == stage().name) std::rethrow_exception(link_->thrown);
      throw;
    } catch (...) {
      if (link_->thrown) std::rethrow_exception(link_->thrown);
      throw;
    }
  }
  std::int64_t pass_over(std::int64_t items) override {
    return Stream::skip(items);  // NOLINT(bugprone-parent-virtual-call): item by item, as StageStream asks for here
  }

  std::shared_ptr<Link> link_;
};

}  // namespace

StagePtr make_given(const StagePlace& at, StreamPtr stream) {
  return at.make<GivenStream>(std::move(stream));
}
StagePtr make_foreign(const StagePlace& at, StreamPtr stream) {
  return at.make<ForeignStream>(std::move(stream));
}
StagePtr make_stage(const Transform&, const StagePlace& at) {
  return at.make<TransformStream>(at.inputs(), at.builder.open_context());
}

}  // namespace levada::pipeline
