#include "levada/feed/feed.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/trace.h"
#include "levada/cli/feed_history.h"
#include "levada/feed/step_cursor.h"
#include "levada/report/balance_report.h"
#include "python/src/base/bytes.h"
#include "python/src/base/escaped_text.h"
#include "python/src/base/process.h"
#include "python/src/batch/rebuild.h"
#include "python/src/bindings.h"
#include "python/src/feed/handoff.h"
#include "python/src/feed/when_dropped.h"
#include "python/src/job/launch.h"
#include "python/src/job/waiting.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

/// The time for which leaving waits for a batch that a Python iterator is making.
constexpr Duration grace = std::chrono::milliseconds(500);
/// The time for which close() waits for another thread's next().
constexpr Duration patience = std::chrono::seconds(5);

/// One pass over a source: a levada::Feed that Python may drop at any time, in a forked child, in a signal handler,
/// during another thread's next(), and at exit. The GIL guards its state, except for members that say otherwise.
class Pass {
 public:
  /// `make` makes the batch that a Handoff requests, on the thread that calls next(); None if another thread makes it.
  /// `where` returns where that thread is stuck; None if that is unknown.
  Pass(const Membership& job, const Mesh& mesh, const Layout& layout, std::shared_ptr<Source> source,
       FeedOptions options, nb::object make, nb::object where, TensorAccess tensor_access, TensorKind others,
       bool allow_pickle, bool record)
      : handoff_(std::dynamic_pointer_cast<Handoff>(source)),
        make_(std::move(make)),
        where_(std::move(where)),
        rebuilder_(allowed_in_batches(allow_pickle), tensor_access, others),
        by_(options.balance),
        data_ranks_(mesh.data_size() * (by_ && by_->max_cp > 1 ? mesh.axis_size("cp") : 1)) {
    options.poll = [this, signals = SignalPoll()]() mutable {
      signals();
      if (leaving_) throw Leaving();
    };
    if (record) {
      log_.reset(new TraceLog(cli::make_trace_log(job.engine().info().size)));
      options.trace = log_.get();
    }
    if (handoff_ && !where_.is_none()) {
      handoff_->on_stalled([this] {
        const nb::gil_scoped_acquire gil;
        post_place();
      });
    }
    if (handoff_) handoff_->set_memory(job.batch_memory());
    if (is_inline()) {
      options.ahead = false;
      handoff_->make_by([this] { make_item(); });
    }
    {
      const EngineWithoutGil engine(job.shared());
      feed_ = std::make_shared<Feed>(engine.shared(), mesh, layout, std::move(source), options);
    }
    begun_ = Clock::now();  // on all ranks alike: some have waited for others to start
    board_ = feed_->group();
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  /// Calls close() and ignores its exceptions.
  ~Pass() {
    try {
      close();
    } catch (const std::exception&) {
      // The error that ended the group was reported at its origin.
    }
  }

  nb::object next() {
    const auto batch = take();
    if (!batch) throw nb::stop_iteration();
    return rebuilder_.rebuild(batch->content);
  }

  bool drop_next() { return take().has_value(); }

  /// Returns None, or a tuple of only the batch, which may itself be None.
  nb::object receive_ahead() {
    expect_own_process();
    std::optional<FlatTree> content;
    if (feed_) {
      const OneCaller::Call entry(occupancy_, "this feed");
      const nb::gil_scoped_release released;
      content = feed_->receive_ahead();
    }
    if (leaving_) close();  // requested by another thread in the meantime
    return content && feed_ ? nb::make_tuple(rebuilder_.rebuild(*content)) : nb::object(nb::none());
  }

  /// Closes the feed. `reason` describes the exception that makes this rank leave.
  void close(const EscapedText& reason = {}) {
    if (current_process() != process_) {
      if (feed_) static_cast<void>(new auto(std::move(feed_)));  // leaked: its threads belong to the parent
      return;
    }
    if (occupancy_.is_mine()) {  // in a signal handler
      leaving_ = feed_ != nullptr;
      return;
    }
    wait_for_other_thread();
    if (!feed_) return;
    const OneCaller::Call entry(occupancy_, "this feed");
    leaving_ = false;
    const auto error = leave(std::exchange(feed_, nullptr), reason.utf8);
    ended();
    if (error) std::rethrow_exception(error);
  }

  void request_stop() {
    expect_own_process();
    auto feed = feed_;
    if (!feed) return;
    const nb::gil_scoped_release released;  // the reading thread may need the GIL to send, while it holds the lock
    feed->request_stop();
    feed.reset();
  }

  /// Returns the rank, the reason and the message of a loss; None once the pass has ended on this rank.
  nb::object await_loss() {
    expect_own_process();
    auto feed = feed_;
    if (!feed) return nb::none();
    std::optional<FeedLoss> loss;
    {
      const nb::gil_scoped_release released;
      loss = feed->await_loss();
      feed.reset();
    }
    if (!loss) return nb::none();
    const auto text_of = [](const std::string& text) {
      return nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    };
    return nb::make_tuple(loss->rank, text_of(loss->reason), text_of(loss->text));
  }

  /// Posts the stalled thread's position to the board, for ranks that wait.
  void post_place() {
    const auto engine = board_.lock();
    if (!engine) return;
    try {
      const nb::object ask = where_;  // leave() may drop it during the call
      const auto where = escaped_str(ask());
      const auto before = engine->status(engine->info().rank);
      auto status = Status::make("reading", before.step, -1, fmt::format("{}, in {}", handoff_->activity(), where));
      status.since_ns = before.since_ns;
      engine->post(status);
    } catch (const std::exception&) {
      // The group has ended, or the interpreter is ending: no rank reads the board.
    }
  }

  std::int64_t step() const { return is_delivered_ ? step_ : step_before_; }
  std::int64_t taken_step() const { return step_; }
  bool is_delivered() const { return is_delivered_; }
  void set_delivered(bool is_delivered) { is_delivered_ = is_delivered; }
  std::int64_t micro() const { return micro_; }
  std::int64_t num_micro() const { return num_micro_; }
  std::int64_t samples() const { return samples_; }
  int cp_size() const { return cp_size_; }
  std::optional<nb::tuple> totals() const {
    if (!totals_) return {};
    return nb::make_tuple(totals_->samples, totals_->tokens, totals_->labels);
  }
  int cp_rank() const { return cp_rank_; }
  std::int64_t whole_steps() const { return delivered().steps; }
  /// Returns the number of complete steps, the cursor after them, and the index and digest of a loader's last item in
  /// them. They are one value, because other threads read them while this one takes batches.
  std::tuple<std::int64_t, nb::bytes, std::int64_t, std::uint64_t> position() const {
    const auto& at = delivered();
    if (at.state && !at.state->failure.empty()) {
      throw Unsupported(fmt::format("the loader's state cannot be saved: {}", at.state->failure));
    }
    if (!at.loader) return {at.steps, to_bytes(at.cursor), -1, 0};
    const auto [item, digest] = at.loader->mark;
    if (!at.state) return {at.steps, to_bytes(Bytes()), item, digest};
    auto cursor = *at.loader;
    cursor.state = *at.state;
    return {at.steps, to_bytes(cursor.encode()), item, digest};
  }
  /// Returns the recorded trace, encoded; empty if nothing is recorded.
  nb::bytes trace() const { return to_bytes(log_ ? encode(log_->trace()) : Bytes()); }
  nb::object end() const {
    const auto& end = is_idle() ? feed_->end() : end_;
    if (!end) return nb::none();
    nb::dict values;
    values["cause"] = std::string(to_string(end->cause));
    values["step"] = end->at.step;
    values["rank"] = end->rank;
    values["message"] = end->message;
    return values;
  }
  /// Returns the balance of the steps that this rank has planned; empty if it plans none.
  std::optional<report::BalanceReport> balance() const {
    auto series = is_idle() ? feed_->balance() : balance_;
    if (!by_ || series.entries().empty()) return std::nullopt;
    return report::BalanceReport{.by = *by_, .ranks = data_ranks_, .series = std::move(series)};
  }
  std::vector<Metric> metrics(const MetricLabels& labels) const { return current_stats().metrics(labels); }
  nb::dict stats() const {
    const auto stats = current_stats();
    nb::dict values;
    values["batches"] = stats.batches;
    values["samples"] = stats.samples;
    values["bytes"] = stats.bytes;
    values["waited_seconds"] = std::chrono::duration<double>(stats.waited).count();
    values["taken_seconds"] = std::chrono::duration<double>(stats.taking).count();
    values["copied_batches"] = stats.copied_batches;
    values["bytes_sent"] = stats.sent_bytes;
    values["bytes_read"] = stats.read.bytes_read;
    values["seconds"] = std::chrono::duration<double>(ended_.value_or(Clock::now()) - begun_).count();
    return values;
  }

 private:
  /// Ends a wait in next().
  struct Leaving : std::exception {};

  /// The content of a saved state.
  struct Position {
    std::int64_t steps = 0;                    ///< complete ones
    Bytes cursor;                              ///< after them; for sources other than loaders
    std::optional<IterableCursor> loader;      ///< the same for a loader, without its state
    std::shared_ptr<const LoaderState> state;  ///< a state of the loader, at this position or an earlier one
  };

  const Position& delivered() const { return is_delivered_ ? position_ : position_before_; }

  /// In a forked child, the feed's statistics belong to the parent, so it returns the last saved ones.
  FeedStats current_stats() const { return feed_ && current_process() == process_ ? feed_->stats() : stats_; }

  /// Returns whether there is a feed that no thread is using.
  bool is_idle() const { return feed_ && occupancy_.is_free(); }

  /// Throws Timeout.
  void wait_for_other_thread() {
    const auto deadline = Deadline::after(patience);
    while (!occupancy_.is_free()) {
      if (feed_) leaving_ = true;
      if (feed_ && deadline.expired()) {  // otherwise that thread is closing it, with its own deadline
        throw Timeout("another thread does not come out of this feed, which cannot be closed");
      }
      {
        const nb::gil_scoped_release released;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  /// Returns the exception that closing threw.
  std::exception_ptr leave(std::shared_ptr<Feed> feed, const std::string& reason) {
    std::exception_ptr error;
    std::optional<FeedEnd> end;
    FeedStats stats;
    BalanceSeries balance;
    {
      const nb::gil_scoped_release released;
      if (handoff_) handoff_->stop(is_inline() ? Duration{} : grace);
      try {
        feed->close(reason);
      } catch (const std::exception&) {
        error = std::current_exception();
      }
      end = feed->end();
      stats = feed->stats();
      balance = feed->balance();
      feed.reset();
      if (handoff_) handoff_->stop({});
    }
    make_ = where_ = nb::none();  // releases the loader's iterator and with it a DataLoader's workers
    end_ = std::move(end);
    stats_ = stats;
    balance_ = std::move(balance);
    return error;
  }

  bool is_inline() const { return handoff_ && !make_.is_none(); }

  /// Called inside next(). An exception that ends the process, such as KeyboardInterrupt, propagates after the others
  /// are notified.
  void make_item() {
    const nb::gil_scoped_acquire gil;
    try {
      make_();
    } catch (const nb::python_error&) {
      interrupt_ = std::current_exception();
    }
  }

  std::optional<Batch> take() {
    expect_own_process();
    is_delivered_ = true;             // a batch that an interrupt has dropped is not taken again
    if (!feed_) return std::nullopt;  // closed, perhaps by a signal handler since the last batch
    std::optional<Batch> batch;
    std::exception_ptr error;
    {
      const OneCaller::Call entry(occupancy_, "this feed");
      const nb::gil_scoped_release released;
      try {
        batch = feed_->next();
      } catch (const Leaving&) {
        // leaving_ is set instead, perhaps by a signal handler or another thread.
      } catch (const std::exception&) {
        error = std::current_exception();
      }
    }
    if (interrupt_) error = std::exchange(interrupt_, nullptr);
    if (leaving_) {
      batch.reset();
      close();
    }
    if (error) std::rethrow_exception(error);
    if (!batch) ended();
    if (!batch) return batch;
    step_before_ = std::exchange(step_, batch->step + 1);
    position_before_ = position_;
    is_delivered_ = false;
    micro_ = batch->micro;
    num_micro_ = batch->num_micro;
    samples_ = batch->samples;
    cp_size_ = batch->cp_size;
    cp_rank_ = batch->cp_rank;
    totals_ = batch->totals;
    if (micro_ + 1 == num_micro_) keep(std::move(batch->cursor));
    return batch;
  }

  void keep(Bytes cursor) {
    position_.steps = step_;
    if (!IterableCursor::is_one(cursor)) {
      position_.cursor = std::move(cursor);
      return;
    }
    auto now = IterableCursor::decode(cursor);
    if (now.state) position_.state = std::make_shared<const LoaderState>(*std::exchange(now.state, {}));
    if (!position_.state && !now.is_counted)
      throw CorruptMessage(0, "a feed's batch refers to a state of its loader that has not arrived");
    position_.loader = std::move(now);
  }

  void ended() {
    if (!ended_) ended_ = Clock::now();
  }

  void expect_own_process() const {
    if (current_process() != process_) {
      throw Unsupported(
          fmt::format("this feed belongs to process {}, from which this one was forked; a child has no "
                      "part in its parent's feeds",
                      process_));
    }
  }

  pid_t process_ = current_process();
  std::shared_ptr<Handoff> handoff_;
  nb::object make_, where_;
  std::weak_ptr<Engine> board_;
  Rebuilder rebuilder_;
  std::exception_ptr interrupt_;
  std::unique_ptr<TraceLog> log_;
  std::shared_ptr<Feed> feed_;         ///< shared with request_stop()
  OneCaller occupancy_;                ///< serializes next() and close()
  std::atomic<bool> leaving_ = false;  ///< set if next() must end; read without the GIL
  Clock::time_point begun_ = Clock::now();
  std::optional<Clock::time_point> ended_;
  std::int64_t step_ = 0, micro_ = 0, num_micro_ = 1, samples_ = 0;
  int cp_size_ = 1, cp_rank_ = 0;
  std::optional<StepTotals> totals_;
  Position position_;         ///< after the last taken batch
  Position position_before_;  ///< before it
  std::int64_t step_before_ = 0;
  bool is_delivered_ = true;  ///< whether the loop has the last taken batch
  std::optional<FeedEnd> end_;
  FeedStats stats_;
  std::optional<Balance> by_;
  int data_ranks_;
  BalanceSeries balance_;
};

std::unique_ptr<Pass> start(const Membership& job, const Mesh& mesh, const Layout& layout,
                            std::shared_ptr<Source> source, std::int64_t batch, const std::string& divide,
                            const std::string& tail, std::int64_t first_sample, std::optional<std::int64_t> steps,
                            const std::string& readers, int depth, double timeout, const std::string& access,
                            nb::object make, nb::object where, const std::string& tensors, bool allow_pickle,
                            bool record, const std::string& name, std::optional<Balance> balance,
                            const nb::bytes& cursor) {
  if (!(timeout > 0)) throw InvalidArgument(fmt::format("timeout must be positive, got {}", timeout));
  const auto others = kind_of_tensors(tensors);
  const bool is_shared = access == "shared";  // for batches that only this package sees
  FeedOptions options{.batch = batch,
                      .divide = parse_divide(divide),
                      .tail = parse_tail(tail),
                      .balance = std::move(balance),
                      .first_sample = first_sample,
                      .delayed = StepCursor::decode(view_of(cursor)).delayed,
                      .steps = steps,
                      .readers = Readers::parse(readers),
                      .depth = depth,
                      .timeout = duration_of(timeout),
                      .access = access.empty() ? Access::private_
                                : is_shared    ? Access::read_only
                                               : parse_access(access),
                      .name = name};
  const auto tensor_access = access == "read_only" ? TensorAccess::without_torch
                             : is_shared           ? TensorAccess::shared
                             : access.empty()      ? TensorAccess::read_only_arrays
                                                   : TensorAccess::as_is;
  return std::make_unique<Pass>(job, mesh, layout, std::move(source), std::move(options), std::move(make),
                                std::move(where), tensor_access, others, allow_pickle, record);
}

}  // namespace

void bind_feed(nb::module_& module) {
  nb::class_<Pass>(module, "Pass", "One pass of a feed.")
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> Pass"))
      .def("__next__", &Pass::next, nb::sig("def __next__(self) -> typing.Any"))
      .def("drop_next", &Pass::drop_next, "Drops the next batch. Returns False after the last one.")
      .def("receive_ahead", &Pass::receive_ahead, nb::sig("def receive_ahead(self) -> tuple[typing.Any] | None"),
           "Returns the next batch if it has arrived, without consuming it; drop_next() does that. Never blocks.")
      .def("close", &Pass::close, nb::arg("reason") = "",
           "Leaves the feed. `reason`: the exception that makes this rank leave, for the errors of the others.")
      .def("await_loss", &Pass::await_loss, nb::sig("def await_loss(self) -> tuple[int, str, str] | None"),
           "Blocks until the end of another rank prevents this one from finishing the pass, while this rank has no "
           "call in progress. Returns that rank or -1, its exception or how it ended, and a line that reports it; None "
           "once the pass has ended on this rank.")
      .def("post_place", &Pass::post_place,
           "Posts the position of the stalled thread on the board, for ranks that wait.")
      .def("request_stop", &Pass::request_stop)
      .def_prop_ro("step", &Pass::step)
      .def_prop_ro("taken_step", &Pass::taken_step, "`step`, even while the last taken batch is not delivered.")
      .def_prop_rw("delivered", &Pass::is_delivered, &Pass::set_delivered,
                   "Whether the loop has the last taken batch. Until then, `step`, `whole_steps` and `position` leave "
                   "it out. The next call sets it.")
      .def_prop_ro("micro", &Pass::micro)
      .def_prop_ro("num_micro", &Pass::num_micro)
      .def_prop_ro("samples", &Pass::samples,
                   "Number of samples, or items of an iterable, in the last taken batch, without padding.")
      .def_prop_ro("cp_size", &Pass::cp_size, "Number of ranks that share the last taken batch, by Balance::max_cp.")
      .def_prop_ro("cp_rank", &Pass::cp_rank, "This rank's index among these ranks.")
      .def_prop_ro("totals", &Pass::totals, nb::sig("def totals(self) -> tuple[int, int | None, int | None] | None"),
                   "Samples, tokens and labels of the step up to the last taken batch, over all data ranks.")
      .def_prop_ro("whole_steps", &Pass::whole_steps)
      .def_prop_ro("balance", &Pass::balance, "The work of the steps that this rank planned, if any.")
      .def("position", &Pass::position,
           "Returns the number of complete steps, the cursor after them, and for an iterable the number and the digest "
           "of their last item, or -1 and 0. Raises Unsupported.")
      .def_prop_ro("end", &Pass::end, nb::sig("def end(self) -> dict[str, typing.Any] | None"))
      .def_prop_ro("trace", &Pass::trace, "The recorded trace, encoded.")
      .def_prop_ro("stats", &Pass::stats, nb::sig("def stats(self) -> dict[str, typing.Any]"))
      .def("metrics", &Pass::metrics, nb::arg("labels"), "Returns the metrics, each with these labels.");
  module.def("start", &start, nb::arg("job"), nb::arg("mesh"), nb::arg("layout"), nb::arg("source").none(),
             nb::kw_only(), nb::arg("batch") = 1, nb::arg("divide") = "deal", nb::arg("tail") = "drop",
             nb::arg("first_sample") = 0, nb::arg("steps") = nb::none(), nb::arg("readers") = "one",
             nb::arg("depth") = 0, nb::arg("timeout") = 1800.0, nb::arg("access") = "", nb::arg("make") = nb::none(),
             nb::arg("where") = nb::none(), nb::arg("tensors") = "numpy", nb::arg("allow_pickle") = false,
             nb::arg("record") = false, nb::arg("name") = "", nb::arg("balance") = nb::none(),
             nb::arg("cursor") = nb::bytes("", 0),
             "Starts a pass. Collective. `cursor`: the cursor of a Corpus at which the pass begins. `name`: the name "
             "of the pass, the same on all ranks.");
  nb::class_<WhenDropped>(module, "WhenDropped",
                          "Calls a function when it is destroyed, with the exception in flight or None.")
      .def(nb::init<nb::object>(), nb::arg("call"));
}

}  // namespace levada::python
