// Stages that look at one item after the other.
#include "levada/pipeline/streams.h"

namespace levada::pipeline {
namespace {

class MapStream final : public StageStream {
 public:
  using StageStream::StageStream;

 private:
  std::optional<Item> make() override {
    const auto& map = operation<Map>();
    while (auto item = pull()) {
      auto made = attempted(map.on_error, [&] { return map.function(std::move(*item)); });
      if (made) return made;
    }
    return std::nullopt;
  }
  std::int64_t pass_over(std::int64_t items) override {
    return operation<Map>().on_error == OnError::raise ? skip_input(items) : StageStream::pass_over(items);
  }
};

class FilterStream final : public StageStream {
 public:
  using StageStream::StageStream;

 private:
  std::optional<Item> make() override {
    const auto& filter = operation<Filter>();
    while (auto item = pull()) {
      const auto keeps = attempted(filter.on_error, [&] { return filter.predicate(*item); });
      if (keeps.value_or(false)) return item;
    }
    return std::nullopt;
  }
};

class TakeStream final : public StageStream {
 public:
  using StageStream::StageStream;

 private:
  std::optional<Item> make() override {
    if (given_ >= operation<Take>().count) return std::nullopt;
    return pull();
  }
};

class SkipStream final : public StageStream {
 public:
  using StageStream::StageStream;

 private:
  std::optional<Item> make() override {
    while (given_ < operation<Skip>().count) {
      if (!pull()) return std::nullopt;
    }
    return pull();
  }
};

class ShardStream final : public StageStream {
 public:
  ShardStream(SettingPtr setting, int stage, StagePtr input, Division division)
      : StageStream(std::move(setting), stage, std::move(input)), division_(division) {}

 private:
  std::optional<Item> make() override {
    for (;;) {
      const bool mine = given_ % division_.count == division_.index;
      auto item = pull();
      if (mine || !item) return item;
    }
  }
  std::int64_t pass_over(std::int64_t items) override {
    if (items == 0) return 0;
    const auto before = (division_.index + division_.count - given_ % division_.count) % division_.count;
    const auto passed = skip_input(before + (items - 1) * division_.count + 1);
    return passed <= before ? 0 : (passed - before - 1) / division_.count + 1;
  }

  Division division_;
};

class Identity final : public StageStream {
 public:
  using StageStream::StageStream;

 private:
  std::optional<Item> make() override { return pull(); }
  std::int64_t pass_over(std::int64_t items) override { return skip_input(items); }
};

}  // namespace

StagePtr make_map(SettingPtr setting, int stage, StagePtr input) {
  return std::make_unique<MapStream>(std::move(setting), stage, std::move(input));
}
StagePtr make_filter(SettingPtr setting, int stage, StagePtr input) {
  return std::make_unique<FilterStream>(std::move(setting), stage, std::move(input));
}
StagePtr make_take(SettingPtr setting, int stage, StagePtr input) {
  return std::make_unique<TakeStream>(std::move(setting), stage, std::move(input));
}
StagePtr make_skip(SettingPtr setting, int stage, StagePtr input) {
  return std::make_unique<SkipStream>(std::move(setting), stage, std::move(input));
}
StagePtr make_identity(SettingPtr setting, int stage, StagePtr input) {
  return std::make_unique<Identity>(std::move(setting), stage, std::move(input));
}
StagePtr make_shard(SettingPtr setting, int stage, StagePtr input, Division division) {
  return std::make_unique<ShardStream>(std::move(setting), stage, std::move(input), division);
}

}  // namespace levada::pipeline
