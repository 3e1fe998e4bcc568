// A worker: receives items of the dispatching process, or reads its own partition, and sends the items that it makes.
#include <algorithm>
#include <limits>
#include <utility>

#include "levada/base/error.h"
#include "levada/pipeline/message_sizer.h"
#include "levada/pipeline/worker_runtime.h"

namespace levada::pipeline {
namespace {

using protocol::Ending;

constexpr std::string_view inputs_key = "received from the dispatching process";

/// Returns the smallest number of inputs in a cursor: the items after it are needed to resume. An iterator that has
/// ended needs none, and records the largest number. Returns nothing if no iterator records a number.
std::optional<std::int64_t> inputs_in(const Tree& cursor) {
  if (cursor.is_leaf()) return std::nullopt;
  const Container& container = cursor.container();
  std::optional<std::int64_t> least;
  for (std::size_t i = 0; i < container.children.size(); ++i) {
    const Tree& child = container.children[i];
    const auto has_key = [&](std::string_view key) {
      return i < container.keys.size() && container.keys[i] == Key(std::string(key));
    };
    std::optional<std::int64_t> num_inputs;
    if (child.is_leaf()) {
      const auto* number = std::get_if<std::int64_t>(&child.leaf());
      if (number != nullptr && has_key(inputs_key)) num_inputs = *number;
      if (has_key("ended") && child == Tree(true)) num_inputs = std::numeric_limits<std::int64_t>::max();
    } else {
      num_inputs = inputs_in(child);
    }
    if (num_inputs) least = std::min(least.value_or(*num_inputs), *num_inputs);
  }
  return least;
}

class Worker {
 public:
  Worker(WorkerRuntime& runtime, int number)
      : runtime_(runtime),
        number_(number),
        receives_inputs_(runtime.placement().dispatch_boundary.has_value()),
        one_a_mark_(!receives_inputs_ || runtime.placement().one_to_one),
        saves_(workers_have_state(runtime.process().graph, runtime.placement())) {
    const Process& process = runtime.process();
    if (receives_inputs_) {
      incoming_.emplace(process.engine, ProcessRanks::dispatcher, worker_edge(process.options), runtime.traffic());
    }
    outgoing_.push_back(std::make_unique<ItemSender>(process.engine, 0, main_edge(process.options), runtime.traffic()));
  }

  void run() {
    runtime_.run_epochs([this] { run_epoch(); },
                        [this] {
                          outgoing_.front()->drop();
                          at_hand_ = {};
                        });
  }

 private:
  /// The items dispatched to this worker, as the input of its stages.
  class DispatchedItems final : public Iterator {
   public:
    explicit DispatchedItems(Worker& worker) : worker_(worker) {}
    std::optional<Item> next() override { return worker_.next_input(); }
    Cursor save() const override {
      return Tree::dict(
          {{std::string(inputs_key), worker_.input_.num_inputs()}, {"ended", worker_.input_.pulled_ending()}});
    }
    void restore(const Cursor& cursor) override {
      const auto* num_inputs = std::get_if<std::int64_t>(&cursor.at(inputs_path()).leaf());
      const auto* ended = std::get_if<bool>(&cursor.at("ended").leaf());
      if (num_inputs == nullptr || ended == nullptr || *num_inputs < worker_.input_.num_inputs()) {
        throw InvalidArgument("this is no cursor of a worker of this pipeline");
      }
      worker_.skip_to(*num_inputs, *ended);
    }

   private:
    static std::string inputs_path() { return '"' + std::string(inputs_key) + '"'; }
    Worker& worker_;
  };

  const ProcessOptions& options() const { return runtime_.process().options; }
  const protocol::WorkerSnapshot& resume_at() const {
    static const protocol::WorkerSnapshot at_first;
    const auto& workers = runtime_.state().reset().workers;
    const auto index = static_cast<std::size_t>(number_);
    return index < workers.size() ? workers[index] : at_first;
  }

  void run_epoch() {
    input_ = protocol::WorkerInput(number_, runtime_.ranks().workers, resume_at().num_inputs);
    sizer_ = MessageSizer(options().main_prefetch > 0 ? MessageSizer::max_items : 1);
    num_outputs_ = resume_at().num_outputs;
    pace_ = SnapshotPace(options().snapshot_every, num_outputs_);
    sent_ = 0;
    reached_ = runtime_.state().reset().mark;
    items_.clear();
    marks_.clear();
    dispatcher_snapshots_.clear();
    snapshot_.reset();
    unpackable_.reset();
    std::optional<Failed> failure;
    try {
      failure = send_all();
    } catch (const std::exception&) {
      if (runtime_.interrupted()) return;
      failure = failed_here();
    }
    // Items made earlier are sent first, which may fail.
    if (auto earlier = failure ? put(Ending::none, failure->mark) : put(ending(), mark())) failure = std::move(earlier);
    if (failure) put_failure(*failure);
    runtime_.send(outgoing_);
    drain();
  }

  struct Failed {
    std::int64_t mark = 0;
    Failure failure;
  };

  /// Returns the current exception as the failure of the item that it prevented.
  Failed failed_here() {
    if (unpackable_) return *std::exchange(unpackable_, std::nullopt);
    const std::int64_t at = one_a_mark_ ? num_outputs_ + 1 : input_.mark();
    return {at, failure_of(std::current_exception(), runtime_.process().name, num_outputs_)};
  }

  Ending ending() const { return receives_inputs_ && !input_.pulled_ending() ? Ending::left : Ending::ended; }

  std::optional<Failed> send_all() {
    const RuntimeOptions runtime_options = this->runtime_options();
    if (runtime_.process().begin_epoch) runtime_.process().begin_epoch(runtime_options.open_context);
    std::map<int, IteratorPtr> instead;
    if (receives_inputs_)
      instead.emplace(*runtime_.placement().dispatch_boundary, std::make_unique<DispatchedItems>(*this));
    const auto iterator =
        open(runtime_.process().graph, *runtime_.placement().collect_boundary, runtime_options, std::move(instead));
    if (!resume_at().cursor.empty()) iterator->restore(unpack_cursor(resume_at().cursor));
    const auto passed = iterator->skip(resume_at().drop);
    num_outputs_ += passed;
    if (passed < resume_at().drop) throw_past_end(num_outputs_, runtime_.process().name);
    for (;;) {
      begin_message(*iterator);
      for (bool full = false; !full;) {
        auto item = iterator->next();
        // A stage that pulls ahead returns the items that it holds first.
        if (unpackable_) return std::exchange(unpackable_, std::nullopt);
        if (!item) return std::nullopt;
        ++num_outputs_;
        marks_.push_back(mark());
        items_.push_back(*std::move(item));
        full = sizer_.add([this] { return runtime_.work_time(); }) || (saves_ && pace_.is_every(num_outputs_)) ||
               !runtime_.process().traits.detach(items_.back());
      }
      if (auto failure = flush(one_a_mark_ ? mark() + 1 : mark())) return failure;
    }
  }

  RuntimeOptions runtime_options() {
    RuntimeOptions runtime_options = runtime_.runtime_options({.role = Role::worker,
                                                               .rank = options().rank,
                                                               .ranks = options().ranks,
                                                               .worker = number_,
                                                               .workers = options().workers});
    runtime_options.prefetches = !receives_inputs_;
    runtime_options.places_by_input = !one_a_mark_;
    // Otherwise marks depend on what stages have pulled ahead, which must not depend on when inputs arrive.
    if (receives_inputs_ && one_a_mark_) runtime_options.would_wait = [this] { return !has_input(); };
    return runtime_options;
  }

  /// Returns the mark of the last item made. A stage that pulls ahead has pulled more inputs than it has yielded items,
  /// so only the number of items is exact.
  std::int64_t mark() const { return one_a_mark_ ? num_outputs_ : input_.mark(); }

  void begin_message(const Iterator& iterator) {
    runtime_.attend();
    if (saves_ && pace_.is_due(num_outputs_, Clock::now())) {
      snapshot_ = runtime_.snapshot(pace_, num_outputs_, [&] {
        const Cursor cursor = iterator.save();
        const std::int64_t num_inputs =
            std::min(inputs_in(cursor).value_or(resume_at().num_inputs), input_.num_inputs());
        return protocol::WorkerSnapshot{
            .num_inputs = num_inputs, .num_outputs = num_outputs_, .cursor = pack_cursor(cursor)};
      });
    }
    sizer_.begin(runtime_.work_time());
  }

  /// Sends the items made so far.
  std::optional<Failed> flush(std::int64_t reached) {
    const auto made = runtime_.work_time();
    auto failure = put(Ending::none, reached);
    sizer_.sent(made, outgoing_.front()->take_bytes());
    runtime_.count_sent(sent_);
    if (!failure) runtime_.send(outgoing_);
    sizer_.begin(runtime_.work_time());
    return failure;
  }

  /// Queues the items made so far, followed by the ending. Returns the item that cannot be packed.
  std::optional<Failed> put(Ending ending, std::int64_t reached) {
    const auto items = std::exchange(items_, {});
    const auto marks = std::exchange(marks_, {});
    if (items.empty() && ending == Ending::none && reached <= reached_) return std::nullopt;
    const std::int64_t sent = sent_;
    const StageScope scope(runtime_.log(), StageWork::pack);
    try {
      outgoing_.front()->put(items, runtime_.process().traits, [&](std::size_t begin, std::size_t end) {
        protocol::Items header{.reset = runtime_.state().reset_number(),
                               .first = sent + static_cast<std::int64_t>(begin),
                               .count = static_cast<std::uint32_t>(end - begin),
                               .reached = std::max(end == items.size() ? reached : marks[end], reached_)};
        header.marks.assign(marks.begin() + static_cast<std::ptrdiff_t>(begin),
                            marks.begin() + static_cast<std::ptrdiff_t>(end));
        if (end == items.size()) header.ending = ending;
        header.snapshot = std::exchange(snapshot_, std::nullopt);
        header.dispatcher_snapshots = std::exchange(dispatcher_snapshots_, {});
        sent_ += header.count;
        reached_ = header.reached;
        return header;
      });
    } catch (const ItemSender::CannotPack& item) {
      const auto number = num_outputs_ - static_cast<std::int64_t>(items.size() - item.item);
      return Failed{marks[item.item], runtime_.cannot_pack(*runtime_.placement().collect_boundary, number, item.cause)};
    }
    return std::nullopt;
  }

  void put_failure(const Failed& failed) {
    outgoing_.front()->put({}, runtime_.process().traits, [&](std::size_t, std::size_t) {
      return protocol::Items{.reset = runtime_.state().reset_number(),
                             .first = sent_,
                             .ending = Ending::failed,
                             .failure = failed.failure,
                             .reached = std::max(failed.mark, reached_)};
    });
  }

  // ---- inputs

  struct AtHand {
    std::vector<Item> items;
    std::size_t next = 0;
    std::optional<Failure> failure;
  };

  std::optional<Item> next_input() {
    while (at_hand_.next == at_hand_.items.size()) {
      if (input_.at_ending()) {
        input_.pull_ending();
        if (input_.ending() == Ending::failed) throw StageFailed(at_hand_.failure.value_or(Failure{}));
        return std::nullopt;
      }
      if (!try_refill()) wait_for_input();
    }
    input_.pull();
    return std::move(at_hand_.items[at_hand_.next++]);
  }

  /// Skips to the position of a restored iterator: its messages begin at resume_at().num_inputs.
  void skip_to(std::int64_t num_inputs, bool ended) {
    while (input_.num_inputs() < num_inputs) {
      if (!next_input()) throw_past_end(input_.num_inputs(), runtime_.process().name);
    }
    if (ended) input_.restore(input_.num_inputs(), true);
  }

  /// Returns whether next_input() would return without waiting.
  bool has_input() {
    while (at_hand_.next == at_hand_.items.size() && !input_.at_ending()) {
      if (!try_refill()) return false;
    }
    return true;
  }

  /// Receives the next message. If there is none yet, sends the finished items and returns false.
  bool try_refill() {
    runtime_.attend();
    auto arrival = receive();
    if (!arrival) {
      // The consumer need not wait for more items of the inputs pulled so far, unless stages hold inputs.
      if (!unpackable_) unpackable_ = flush(one_a_mark_ ? num_outputs_ + 1 : input_.num_inputs() + 1);
      if (unpackable_) throw StageFailed(unpackable_->failure);
      return false;
    }
    input_.apply(arrival->items);
    std::ranges::move(arrival->items.dispatcher_snapshots, std::back_inserter(dispatcher_snapshots_));
    at_hand_.failure = std::move(arrival->items.failure);
    at_hand_.next = 0;
    {
      const StageScope scope(runtime_.log(), StageWork::unpack);
      at_hand_.items = incoming_->unpack(*std::move(arrival), runtime_.process().traits);
    }
    // A stage that drops all items reports its progress periodically.
    if (items_.empty() && !one_a_mark_) {
      put(Ending::none, input_.num_inputs() + 1);
      runtime_.send(outgoing_);
    }
    return true;
  }

  /// Returns the next message of this epoch.
  std::optional<ItemReceiver::Arrival> receive() {
    for (;;) {
      auto arrival = early_ ? std::exchange(early_, std::nullopt) : incoming_->try_receive();
      if (!arrival) return std::nullopt;
      switch (runtime_.state().decide(arrival->items.reset)) {
        case protocol::Decision::use: return arrival;
        case protocol::Decision::drop: break;
        case protocol::Decision::keep:
          early_ = std::move(arrival);
          for (;;) runtime_.wait_for_command();
      }
    }
  }

  void wait_for_input() {
    if (incoming_->ended()) return runtime_.wait_for_command();  // the dispatching process received the command first
    runtime_.wait(incoming_->channels(), {}, 0, ProcessRanks::dispatcher);
    sizer_.begin(runtime_.work_time());
  }

  /// Receives what is still dispatched to a worker that has ended, so that the dispatching process does not wait for
  /// room.
  void drain() {
    for (;;) {
      runtime_.attend();
      if (!incoming_) runtime_.wait_for_command();
      else if (!receive()) wait_for_input();
    }
  }

  WorkerRuntime& runtime_;
  int number_;
  bool receives_inputs_, one_a_mark_, saves_;
  std::optional<ItemReceiver> incoming_;
  std::vector<std::unique_ptr<ItemSender>> outgoing_;
  std::optional<ItemReceiver::Arrival> early_;  ///< message of an epoch whose Reset has not arrived yet

  // The current epoch.
  protocol::WorkerInput input_;
  AtHand at_hand_;
  MessageSizer sizer_;
  SnapshotPace pace_;
  std::vector<Item> items_;  ///< made, but not yet sent
  std::vector<std::int64_t> marks_;
  std::int64_t num_outputs_ = 0, sent_ = 0, reached_ = 0;
  std::vector<protocol::DispatcherSnapshot> dispatcher_snapshots_;
  std::optional<protocol::WorkerSnapshot> snapshot_;
  std::optional<Failed> unpackable_;
};

}  // namespace

void work(WorkerRuntime& runtime, int worker) {
  Worker(runtime, worker).run();
}

}  // namespace levada::pipeline
