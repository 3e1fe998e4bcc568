// Stages that make one item of several.
#include <algorithm>

#include "levada/pipeline/streams.h"

namespace levada::pipeline {
namespace {

class BatchStream final : public StageStream {
 public:
  using StageStream::StageStream;

 private:
  std::optional<Item> make() override {
    constexpr std::int64_t at_once = 1024;  // A size that is meant as "all" takes no memory beforehand.
    const auto& batch = operation<Batch>();
    std::vector<Item> items;
    items.reserve(static_cast<std::size_t>(std::min(batch.size, at_once)));
    while (static_cast<std::int64_t>(items.size()) < batch.size) {
      auto item = pull();
      if (!item) break;
      items.push_back(std::move(*item));
    }
    const bool whole = static_cast<std::int64_t>(items.size()) == batch.size;
    if (items.empty() || (!whole && batch.drop_last)) return std::nullopt;
    return guarded([&] { return setting_->values.list_of(std::move(items)); });
  }
};

class ZipStream final : public StageStream {
 public:
  ZipStream(SettingPtr setting, int stage, std::vector<StagePtr> inputs)
      : StageStream(std::move(setting), stage, nullptr), inputs_(std::move(inputs)) {}

 private:
  std::optional<Item> make() override {
    std::vector<Item> items;
    items.reserve(inputs_.size());
    for (auto& input : inputs_) {
      auto item = waited([&] { return input->next(); });
      if (!item) return std::nullopt;
      items.push_back(std::move(*item));
    }
    ++given_;
    return guarded([&] { return setting_->values.tuple_of(std::move(items)); });
  }

  Saved saved() const override {
    std::vector<Tree> inputs;
    for (const auto& input : inputs_) inputs.push_back(input->save());
    return {{}, {{"inputs", Tree::list(std::move(inputs))}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    const auto& inputs = list_in_cursor(own.at("inputs"), stage().name);
    if (inputs.size() != inputs_.size() || !before.empty()) own.refuse("it has other inputs");
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs_[i]->restore(inputs[i]);
  }
  void release() override { inputs_.clear(); }

  std::vector<StagePtr> inputs_;
};

}  // namespace

StagePtr make_batch(SettingPtr setting, int stage, StagePtr input) {
  return std::make_unique<BatchStream>(std::move(setting), stage, std::move(input));
}
StagePtr make_zip(SettingPtr setting, int stage, std::vector<StagePtr> inputs) {
  return std::make_unique<ZipStream>(std::move(setting), stage, std::move(inputs));
}

}  // namespace levada::pipeline
