// The dispatching process: makes items and sends them to the workers in turn.
#include <algorithm>
#include <utility>

#include "levada/pipeline/message_sizer.h"
#include "levada/pipeline/worker_runtime.h"

namespace levada::pipeline {
namespace {

using protocol::Ending;

class Dispatcher {
 public:
  explicit Dispatcher(WorkerRuntime& runtime)
      : runtime_(runtime), shares_(static_cast<std::size_t>(runtime.ranks().workers)) {
    const Process& process = runtime.process();
    for (int w = 0; w < runtime.ranks().workers; ++w) {
      outgoing_.push_back(std::make_unique<ItemSender>(process.engine, runtime.ranks().rank_of(w),
                                                       worker_edge(process.options), runtime.traffic()));
    }
  }

  void run() {
    runtime_.run_epochs([this] { run_epoch(); },
                        [this] {
                          for (const auto& outgoing : outgoing_) outgoing->drop();
                        });
  }

 private:
  /// The next items for one worker.
  struct Share {
    std::int64_t first = 0;
    std::vector<Item> items;
    bool sent_ending = false;
  };
  struct Failed {
    std::int64_t number = 0;  ///< number of the item that it replaces
    Failure failure;
  };

  int workers() const { return runtime_.ranks().workers; }
  const ProcessOptions& options() const { return runtime_.process().options; }
  Failed failed(const std::exception_ptr& error, std::int64_t number) const {
    return {number, failure_of(error, runtime_.process().name, number)};
  }

  void run_epoch() {
    assigner_ = protocol::RoundRobinAssigner(workers(), runtime_.state().reset());
    sizer_ = MessageSizer(options().worker_prefetch > 0 ? MessageSizer::max_items : 1);
    pace_ = SnapshotPace(options().snapshot_every, assigner_.number());
    snapshot_.reset();
    shares_.assign(shares_.size(), {});
    std::optional<Failed> failure;
    try {
      failure = dispatch_all();
    } catch (const std::exception&) {
      if (runtime_.interrupted()) return;
      failure = failed(std::current_exception(), assigner_.number());
    }
    // Items made earlier are sent first, which may fail.
    if (auto earlier = put_shares(failure ? Ending::none : Ending::ended)) failure = std::move(earlier);
    if (failure) put_failure(*failure);
    runtime_.send(outgoing_);
    for (;;) runtime_.wait_for_command();
  }

  std::optional<Failed> dispatch_all() {
    const auto& state = runtime_.state();
    // Without a Dispatch, all stages draw the random numbers of a run without workers, in which the consumer runs them.
    const Role role = last_dispatched(runtime_.process().graph) ? Role::dispatcher : Role::consumer;
    const RuntimeOptions runtime_options = runtime_.runtime_options(
        {.role = role, .rank = options().rank, .ranks = options().ranks, .workers = options().workers});
    if (runtime_.process().begin_epoch) runtime_.process().begin_epoch(runtime_options.open_context);
    const auto iterator = open(runtime_.process().graph, *runtime_.placement().dispatch_boundary, runtime_options);
    if (!state.reset().dispatcher.cursor.empty()) iterator->restore(unpack_cursor(state.reset().dispatcher.cursor));
    assigner_.advance(iterator->skip(assigner_.unwanted()));
    for (;;) {
      runtime_.attend();
      begin_message(*iterator);
      for (bool full = false; !full;) {
        auto item = iterator->next();
        if (!item) {
          if (!assigner_.has_caught_up()) throw_past_end(assigner_.number());
          return std::nullopt;
        }
        Item* const added = assigner_.wanted() ? &add(*std::move(item)) : nullptr;
        assigner_.advance();
        full = sizer_.add([this] { return runtime_.work_time(); }) || pace_.is_every(assigner_.number()) ||
               (added != nullptr && !runtime_.process().traits.detach(*added));
      }
      if (auto failure = flush()) return failure;
    }
  }

  void begin_message(const Iterator& iterator) {
    if (pace_.is_due(assigner_.number(), Clock::now())) {
      snapshot_ = runtime_.snapshot(pace_, assigner_.number(), [&] {
        return protocol::DispatcherSnapshot{assigner_.number(), pack_cursor(iterator.save())};
      });
    }
    sizer_.begin(runtime_.work_time());
  }

  Item& add(Item item) {
    Share& share = shares_[static_cast<std::size_t>(assigner_.worker())];
    if (share.items.empty()) share.first = assigner_.number();
    return share.items.emplace_back(std::move(item));
  }

  std::optional<Failed> flush() {
    const auto made = runtime_.work_time();
    auto failure = put_shares(Ending::none);
    std::size_t bytes = 0;
    for (const auto& outgoing : outgoing_) bytes += outgoing->take_bytes();
    sizer_.sent(made, bytes);
    runtime_.count_sent(assigner_.number());
    if (!failure) runtime_.send(outgoing_);
    return failure;
  }

  /// Queues each worker's next items, followed by the ending. Returns the first item that cannot be packed.
  std::optional<Failed> put_shares(Ending ending) {
    const auto first = std::min_element(shares_.begin(), shares_.end(), [](const Share& a, const Share& b) {
      return !a.items.empty() && (b.items.empty() || a.first < b.first);
    });
    const StageScope scope(runtime_.log(), StageWork::pack);
    std::optional<Failed> failure;
    for (Share& share : shares_) {
      const auto worker = static_cast<std::size_t>(&share - shares_.data());
      auto snapshot = &share == &*first ? std::exchange(snapshot_, std::nullopt) : std::nullopt;
      try {
        put_share(worker, ending, std::move(snapshot));
      } catch (const ItemSender::CannotPack& item) {
        const std::int64_t number = share.first + static_cast<std::int64_t>(item.item) * workers();
        if (!failure || number < failure->number) {
          failure = {number, runtime_.cannot_pack(*runtime_.placement().dispatch_boundary, number, item.cause)};
        }
      }
      share.items.clear();
    }
    return failure;
  }

  void put_share(std::size_t worker, Ending ending, std::optional<protocol::DispatcherSnapshot> snapshot) {
    Share& share = shares_[worker];
    if (share.items.empty() && ending == Ending::none) return;
    outgoing_[worker]->put(share.items, runtime_.process().traits, [&](std::size_t begin, std::size_t end) {
      protocol::Items items{.reset = runtime_.state().reset_number(),
                            .first = share.first + static_cast<std::int64_t>(begin) * workers(),
                            .count = static_cast<std::uint32_t>(end - begin)};
      if (snapshot) items.dispatcher_snapshots.push_back(*std::exchange(snapshot, std::nullopt));
      if (end == share.items.size()) items.ending = ending;
      share.sent_ending = items.ending != Ending::none;
      return items;
    });
  }

  /// Sends the failure in place of its item, and the end to all other workers.
  void put_failure(const Failed& failed) {
    for (Share& share : shares_) {
      if (share.sent_ending) continue;
      const auto worker = static_cast<std::size_t>(&share - shares_.data());
      const bool fails = failed.number % workers() == static_cast<std::int64_t>(worker);
      outgoing_[worker]->put({}, runtime_.process().traits, [&](std::size_t, std::size_t) {
        protocol::Items items{.reset = runtime_.state().reset_number(),
                              .ending = fails ? Ending::failed : Ending::ended};
        if (fails) items.failure = failed.failure;
        return items;
      });
    }
  }

  WorkerRuntime& runtime_;
  std::vector<std::unique_ptr<ItemSender>> outgoing_;
  std::vector<Share> shares_;
  protocol::RoundRobinAssigner assigner_;
  MessageSizer sizer_;
  SnapshotPace pace_;
  std::optional<protocol::DispatcherSnapshot> snapshot_;  ///< to be sent with the next items
};

}  // namespace

void dispatch(WorkerRuntime& runtime) {
  Dispatcher(runtime).run();
}

}  // namespace levada::pipeline
