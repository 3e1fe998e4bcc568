#include "levada/pipeline/streams.h"

namespace levada::pipeline {
namespace {

class RepeatStream final : public StageStream {
 public:
  RepeatStream(SettingPtr setting, int stage, std::function<StagePtr(std::int64_t)> open)
      : StageStream(std::move(setting), stage, nullptr), open_(std::move(open)) {}

 private:
  std::optional<Item> make() override {
    const auto& times = operation<Repeat>().times;
    for (;;) {
      if (input_ == nullptr) {
        if (times && pass_ >= *times) return std::nullopt;
        input_ = open_(pass_);
      }
      if (auto item = pull()) {
        any_ = true;
        return item;
      }
      input_.reset();
      // What has nothing once has nothing without end.
      if (!times && !any_) return std::nullopt;
      any_ = false;
      ++pass_;
    }
  }

  Saved saved() const override {
    return {input_ == nullptr ? std::vector<Tree>() : input_->entries(), {{"pass", pass_}, {"any", any_}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    pass_ = own.count("pass");
    any_ = own.at("any") == Tree(true);
    const auto& times = operation<Repeat>().times;
    if (times && pass_ > *times) own.refuse("it is of a later pass than there are");
    if (before.empty()) return;
    input_ = open_(pass_);
    input_->restore_entries(before);
  }

  std::function<StagePtr(std::int64_t)> open_;
  std::int64_t pass_ = 0;
  bool any_ = false;  ///< whether this pass has given an item
};

}  // namespace

StagePtr make_repeat(SettingPtr setting, int stage, std::function<StagePtr(std::int64_t)> open) {
  return std::make_unique<RepeatStream>(std::move(setting), stage, std::move(open));
}

}  // namespace levada::pipeline
