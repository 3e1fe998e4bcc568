#include "levada/engine/polled.h"

#include <algorithm>

namespace levada {
namespace {

constexpr Duration moment = std::chrono::milliseconds(50);

class PolledEngine final : public Engine {
 public:
  PolledEngine(std::shared_ptr<Engine> engine, std::function<void()> poll)
      : engine_(std::move(engine)), poll_(std::move(poll)) {}

  Woken wait(const WaitFor& conditions, Deadline deadline) override {
    for (;;) {
      const auto woken = engine_->wait(conditions, Deadline::after(std::min(moment, deadline.remaining())));
      if (woken != Woken::timeout || deadline.expired()) return woken;
      poll_();
    }
  }
  std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) override {
    return polled(engine_->subgroup(ranks, name), poll_);
  }

  const EngineInfo& info() const override { return engine_->info(); }
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window) override {
    return engine_->open(from, to, window);
  }
  std::optional<Block> try_allocate(std::size_t bytes) override { return engine_->try_allocate(bytes); }
  bool try_publish(Channel& channel, Block& block, std::size_t bytes) override {
    return engine_->try_publish(channel, block, bytes);
  }
  std::optional<Lease> try_take(Channel& channel) override { return engine_->try_take(channel); }
  std::span<std::byte> make_private(Channel& channel, Lease& lease) override {
    return engine_->make_private(channel, lease);
  }
  bool ended(Channel& channel) override { return engine_->ended(channel); }
  void wake() override { engine_->wake(); }
  void abort(std::string_view reason) noexcept override { engine_->abort(reason); }
  void close(Channel& channel) noexcept override { engine_->close(channel); }
  void post(const Status& status) override { engine_->post(status); }
  Status status(int rank) override { return engine_->status(rank); }
  std::vector<Holder> holders(Channel& channel) override { return engine_->holders(channel); }
  std::uint64_t memory_in_use() override { return engine_->memory_in_use(); }
  std::uint64_t trim() override { return engine_->trim(); }

 private:
  std::shared_ptr<Engine> engine_;
  std::function<void()> poll_;
};

}  // namespace

std::shared_ptr<Engine> polled(std::shared_ptr<Engine> engine, std::function<void()> poll) {
  return std::make_shared<PolledEngine>(std::move(engine), std::move(poll));
}

}  // namespace levada
