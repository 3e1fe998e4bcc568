// A worker: draws what it is dealt, makes what the consumer is given.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "levada/base/error.h"
#include "levada/pipeline/message_sizer.h"
#include "levada/pipeline/worker_runtime.h"

namespace levada::pipeline {
namespace {

using protocol::Ending;

constexpr std::string_view inputs_key = "drawn from the dispatching process";

/// Returns the smallest number of inputs in a cursor: the items after it are needed to resume.
std::optional<std::int64_t> inputs_in(const Tree& cursor) {
  if (cursor.is_leaf()) return std::nullopt;
  const Container& container = cursor.container();
  std::optional<std::int64_t> least;
  for (std::size_t i = 0; i < container.children.size(); ++i) {
    const Tree& child = container.children[i];
    std::optional<std::int64_t> num_inputs;
    if (i < container.keys.size() && container.keys[i] == Key(std::string(inputs_key)) && child.is_leaf()) {
      if (const auto* number = std::get_if<std::int64_t>(&child.leaf())) num_inputs = *number;
    } else {
      num_inputs = inputs_in(child);
    }
    if (num_inputs) least = std::min(least.value_or(*num_inputs), *num_inputs);
  }
  return least;
}

class Worker {
 public:
  Worker(WorkerRuntime& loop, int number)
      : loop_(loop),
        number_(number),
        marks_by_input_(loop.placement().dispatch_boundary.has_value()),
        one_a_mark_(!marks_by_input_ || loop.placement().one_to_one),
        saves_(workers_have_state(loop.process().graph, loop.placement())) {
    const Process& process = loop.process();
    if (marks_by_input_) {
      incoming_.emplace(process.engine, ProcessRanks::dispatcher, worker_edge(process.options), loop.traffic());
    }
    outgoing_.push_back(std::make_unique<ItemSender>(process.engine, 0, main_edge(process.options), loop.traffic()));
  }

  void run() {
    loop_.run_passes([this] { run_pass(); },
                     [this] {
                       outgoing_.front()->drop();
                       at_hand_ = {};
                     });
  }

 private:
  /// What this worker is dealt, as its stages see it.
  class Dealt final : public Iterator {
   public:
    explicit Dealt(Worker& worker) : worker_(worker) {}
    std::optional<Item> next() override { return worker_.next_input(); }
    Cursor save() const override {
      return Tree::dict(
          {{std::string(inputs_key), worker_.input_.num_inputs()}, {"ended", worker_.input_.took_ending()}});
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

  const ProcessOptions& options() const { return loop_.process().options; }
  const protocol::WorkerSnapshot& start() const {
    static const protocol::WorkerSnapshot at_first;
    const auto& workers = loop_.state().reset().workers;
    const auto index = static_cast<std::size_t>(number_);
    return index < workers.size() ? workers[index] : at_first;
  }

  void run_pass() {
    input_ = protocol::WorkerInput(number_, loop_.ranks().workers, start().num_inputs);
    sizer_ = MessageSizer(options().main_prefetch > 0 ? MessageSizer::max_items : 1);
    pace_ = SnapshotPace(options().snapshot_every);
    num_outputs_ = start().num_outputs;
    sent_ = 0;
    saved_at_ = num_outputs_;
    reached_ = loop_.state().reset().mark;
    items_.clear();
    marks_.clear();
    places_.clear();
    start_.reset();
    unpackable_.reset();
    std::optional<Failed> failure;
    try {
      failure = give_all();
    } catch (const std::exception&) {
      if (loop_.interrupted()) return;
      failure = failed_here();
    }
    // Items that were made before it are sent first, which may fail.
    if (auto earlier = failure ? put(Ending::none, failure->mark) : put(ending(), mark())) failure = std::move(earlier);
    if (failure) put_failure(*failure);
    loop_.send(outgoing_);
    drain();
  }

  struct Failed {
    std::int64_t mark = 0;
    Failure failure;
  };

  /// The exception that is being handled, in the place of the item that would have come.
  Failed failed_here() {
    if (unpackable_) return *std::exchange(unpackable_, std::nullopt);
    const std::int64_t at = marks_by_input_ ? input_.mark() : num_outputs_ + 1;
    return {at, failure_of(std::current_exception(), loop_.process().name, num_outputs_)};
  }

  Ending ending() const { return marks_by_input_ && !input_.took_ending() ? Ending::left : Ending::ended; }

  std::optional<Failed> give_all() {
    const RuntimeOptions runtime_options = this->runtime_options();
    if (loop_.process().begin_epoch) loop_.process().begin_epoch(runtime_options.open_context);
    std::map<int, IteratorPtr> instead;
    if (marks_by_input_) instead.emplace(*loop_.placement().dispatch_boundary, std::make_unique<Dealt>(*this));
    const auto iterator =
        open(loop_.process().graph, *loop_.placement().collect_boundary, runtime_options, std::move(instead));
    if (!start().cursor.empty()) iterator->restore(unpack_cursor(start().cursor));
    const auto passed = iterator->skip(start().drop);
    num_outputs_ += passed;
    if (passed < start().drop) {
      throw InvalidArgument(
          fmt::format("the state is of an item after the end: there are {} items in {}; resume with the data that it "
                      "was saved with",
                      num_outputs_, loop_.process().name));
    }
    for (;;) {
      begin_message(*iterator);
      for (bool full = false; !full;) {
        auto item = iterator->next();
        if (!item) return std::nullopt;
        ++num_outputs_;
        marks_.push_back(mark());
        items_.push_back(*std::move(item));
        full = sizer_.add([this] { return loop_.work_time(); }) || is_snapshot_due();
      }
      if (auto failure = flush(one_a_mark_ ? mark() + 1 : mark())) return failure;
    }
  }

  RuntimeOptions runtime_options() {
    RuntimeOptions runtime_options = loop_.runtime_options({.role = Role::worker,
                                                            .rank = options().rank,
                                                            .ranks = options().ranks,
                                                            .worker = number_,
                                                            .workers = options().workers});
    runtime_options.prefetches = !marks_by_input_;
    return runtime_options;
  }

  /// Of what was given last.
  std::int64_t mark() const { return marks_by_input_ ? input_.mark() : num_outputs_; }

  /// Whether the user's number of items has been made since the last snapshot.
  bool is_snapshot_due() const {
    const auto every = options().snapshot_every;
    return saves_ && every > 0 && num_outputs_ - saved_at_ >= every;
  }

  void begin_message(const Iterator& iterator) {
    loop_.attend();
    if (saves_ && pace_.is_due(num_outputs_ - saved_at_, Clock::now())) {
      saved_at_ = num_outputs_;
      start_ = loop_.snapshot(pace_, [&] {
        const Cursor cursor = iterator.save();
        const std::int64_t num_inputs = inputs_in(cursor).value_or(input_.num_inputs());
        return protocol::WorkerSnapshot{
            .num_inputs = num_inputs, .num_outputs = num_outputs_, .cursor = pack_cursor(cursor)};
      });
    }
    sizer_.begin(loop_.work_time());
  }

  /// Sends what has been made.
  std::optional<Failed> flush(std::int64_t reached) {
    const auto made = loop_.work_time();
    auto failure = put(Ending::none, reached);
    sizer_.sent(made, outgoing_.front()->take_bytes());
    loop_.count_sent(sent_);
    if (!failure) loop_.send(outgoing_);
    sizer_.begin(loop_.work_time());
    return failure;
  }

  /// Puts what has been made, and the ending behind it. Gives the item that cannot be packed.
  std::optional<Failed> put(Ending ending, std::int64_t reached) {
    const auto items = std::exchange(items_, {});
    const auto marks = std::exchange(marks_, {});
    if (items.empty() && ending == Ending::none && reached <= reached_) return std::nullopt;
    const std::int64_t sent = sent_;
    const StageScope scope(loop_.log(), StageWork::pack);
    try {
      outgoing_.front()->put(items, loop_.process().traits, [&](std::size_t begin, std::size_t end) {
        protocol::Items header{.pass = loop_.state().pass(),
                               .first = sent + static_cast<std::int64_t>(begin),
                               .count = static_cast<std::uint32_t>(end - begin),
                               .reached = std::max(end == items.size() ? reached : marks[end], reached_)};
        header.marks.assign(marks.begin() + static_cast<std::ptrdiff_t>(begin),
                            marks.begin() + static_cast<std::ptrdiff_t>(end));
        if (end == items.size()) header.ending = ending;
        header.start = std::exchange(start_, std::nullopt);
        header.places = std::exchange(places_, {});
        sent_ += header.count;
        reached_ = header.reached;
        return header;
      });
    } catch (const ItemSender::CannotPack& item) {
      const auto number = num_outputs_ - static_cast<std::int64_t>(items.size() - item.item);
      return Failed{marks[item.item], loop_.cannot_pack(*loop_.placement().collect_boundary, number, item.cause)};
    }
    return std::nullopt;
  }

  void put_failure(const Failed& failed) {
    outgoing_.front()->put({}, loop_.process().traits, [&](std::size_t, std::size_t) {
      return protocol::Items{.pass = loop_.state().pass(),
                             .first = sent_,
                             .ending = Ending::failed,
                             .failure = failed.failure,
                             .reached = std::max(failed.mark, reached_)};
    });
  }

  // ---- drawing

  struct AtHand {
    std::vector<Item> items;
    std::size_t next = 0;
    std::optional<Failure> failure;
  };

  std::optional<Item> next_input() {
    while (at_hand_.next == at_hand_.items.size()) {
      if (input_.at_ending()) {
        input_.take_ending();
        if (input_.ending() == Ending::failed) throw StageFailed(at_hand_.failure.value_or(Failure{}));
        return std::nullopt;
      }
      refill();
    }
    input_.take();
    return std::move(at_hand_.items[at_hand_.next++]);
  }

  /// The position of a restored iterator: its messages begin at start().drawn.
  void skip_to(std::int64_t num_inputs, bool ended) {
    while (input_.num_inputs() < num_inputs) {
      if (next_input()) continue;
      throw InvalidArgument(
          fmt::format("the state is of an item after the end: there are {} items in {}; resume with the data that it "
                      "was saved with",
                      input_.num_inputs(), loop_.process().name));
    }
    if (ended) input_.restore(input_.num_inputs(), true);
  }

  void refill() {
    loop_.attend();
    auto arrival = take();
    if (!arrival) {
      // Finished items are sent, and the consumer need not wait for more items of the inputs taken so far.
      unpackable_ = flush(input_.num_inputs() + 1);
      if (unpackable_) throw StageFailed(unpackable_->failure);
      wait_for_input();
      return;
    }
    input_.apply(arrival->items);
    std::ranges::move(arrival->items.places, std::back_inserter(places_));
    at_hand_.failure = std::move(arrival->items.failure);
    at_hand_.next = 0;
    {
      const StageScope scope(loop_.log(), StageWork::unpack);
      at_hand_.items = incoming_->unpack(*std::move(arrival), loop_.process().traits);
    }
    // A stage that leaves out all items reports its progress now and then.
    if (items_.empty() && !one_a_mark_) {
      put(Ending::none, input_.num_inputs() + 1);
      loop_.send(outgoing_);
    }
  }

  /// The next message of this pass.
  std::optional<ItemReceiver::Arrival> take() {
    for (;;) {
      auto arrival = early_ ? std::exchange(early_, std::nullopt) : incoming_->try_receive();
      if (!arrival) return std::nullopt;
      switch (loop_.state().decide(arrival->items.pass)) {
        case protocol::Decision::use: return arrival;
        case protocol::Decision::drop: break;
        case protocol::Decision::keep:
          early_ = std::move(arrival);
          for (;;) loop_.wait_for_command();
      }
    }
  }

  void wait_for_input() {
    if (incoming_->ended()) return loop_.wait_for_command();  // the dispatching process received the command first
    loop_.wait(incoming_->channels(), {}, 0, ProcessRanks::dispatcher);
    sizer_.begin(loop_.work_time());
  }

  /// What is still dealt to a worker that has ended must not keep it from the others.
  void drain() {
    for (;;) {
      loop_.attend();
      if (!incoming_) loop_.wait_for_command();
      else if (!take()) wait_for_input();
    }
  }

  WorkerRuntime& loop_;
  int number_;
  bool marks_by_input_, one_a_mark_, saves_;
  std::optional<ItemReceiver> incoming_;
  std::vector<std::unique_ptr<ItemSender>> outgoing_;
  std::optional<ItemReceiver::Arrival> early_;  ///< of a pass that is still to be ordered

  // Of the pass under way.
  protocol::WorkerInput input_;
  AtHand at_hand_;
  MessageSizer sizer_;
  SnapshotPace pace_;
  std::vector<Item> items_;  ///< made, not sent
  std::vector<std::int64_t> marks_;
  std::int64_t num_outputs_ = 0, sent_ = 0, saved_at_ = 0, reached_ = 0;
  std::vector<protocol::DispatcherSnapshot> places_;
  std::optional<protocol::WorkerSnapshot> start_;
  std::optional<Failed> unpackable_;
};

}  // namespace

void work(WorkerRuntime& loop, int worker) {
  Worker(loop, worker).run();
}

}  // namespace levada::pipeline
