#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "levada/base/error.h"
#include "levada/pipeline/consumer.h"
#include "levada/pipeline/cursors.h"
#include "levada/pipeline/failure.h"
#include "levada/pipeline/placement.h"
#include "levada/pipeline/show.h"
#include "levada/report/pipeline_report.h"
#include "python/src/base/bytes.h"
#include "python/src/base/process.h"
#include "python/src/batch/rebuild.h"
#include "python/src/batch/trees.h"
#include "python/src/bindings.h"
#include "python/src/job/launch.h"
#include "python/src/job/waiting.h"
#include "python/src/pipeline/failures.h"
#include "python/src/pipeline/pickling.h"
#include "python/src/pipeline/stages.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

using pipeline::Graph;
using pipeline::Item;
using pipeline::OpenContext;
using pipeline::ProcessOptions;

std::string show(const Graph& graph, const std::string& format, int workers, bool ordered,
                 const pipeline::Stats* stats) {
  const auto placement = pipeline::place(graph, workers, ordered);
  const pipeline::GraphView view{.graph = graph, .placement = placement, .workers = workers, .stats = stats};
  if (format == "text") return pipeline::to_text(view);
  if (format == "json") return pipeline::to_json(view);
  if (format == "mermaid") return pipeline::to_mermaid(view);
  throw InvalidArgument(fmt::format("format is {:.40}; it must be text, json or mermaid", format));
}

/// The rank that runs the pipeline and the number of ranks; 0 and 1 without other ranks.
using Place = std::pair<int, int>;

/// `given` is a levada.pipeline.options.Options with its seed set.
ProcessOptions options_of(nb::handle given, Place place) {
  const auto number = [&](const char* name) { return nb::cast<std::int64_t>(given.attr(name)); };
  return {.workers = static_cast<int>(number("workers")),
          .worker_prefetch = number("worker_prefetch"),
          .main_prefetch = number("main_prefetch"),
          .prefetch_bytes = nb::cast<std::size_t>(given.attr("prefetch_bytes")),
          .snapshot_every = number("snapshot_every"),
          .ordered = nb::cast<bool>(given.attr("ordered")),
          .seed = nb::cast<std::uint64_t>(given.attr("seed")),
          .rank = place.first,
          .ranks = place.second,
          .timeout = duration_of(nb::cast<double>(given.attr("timeout"))),
          .record = nb::cast<bool>(given.attr("record"))};
}

/// Returns a hook that calls `function` before each epoch, or nothing if it is None.
std::function<void(const OpenContext&)> begin_epoch_by(nb::object function) {
  if (function.is_none()) return {};
  return [function = Shared(std::move(function))](const OpenContext& open_context) {
    in_python([&] { function.get()(open_context); });
  };
}

void serve(const Membership& job, const Graph& graph, nb::handle options, Place place, const std::string& name,
           nb::object begin_epoch) {
  const PythonItemTraits traits;
  const pipeline::Process process{.engine = job.shared(),
                                  .graph = graph,
                                  .traits = traits,
                                  .options = options_of(options, place),
                                  .name = name,
                                  .all_ranks = nullptr,
                                  .begin_epoch = begin_epoch_by(std::move(begin_epoch)),
                                  .poll = check_signals};
  const nb::gil_scoped_release released;
  pipeline::serve(process);
}

/// How long close() waits for another thread's next().
constexpr Duration patience = std::chrono::seconds(5);

/// The consumer of a pipeline. Python may use it on any thread and in a signal handler; a forked child does not touch
/// it. One thread at a time takes items. Other threads may pause, resume, close and ask for statistics concurrently.
/// Only the thread that takes items changes the state of the epoch; the GIL guards the rest.
class Consumer {
 public:
  Consumer(std::shared_ptr<Engine> engine, const Graph& graph, nb::handle options, Place place, std::string name,
           std::shared_ptr<Engine> all_ranks, std::string name_among_ranks)
      : keeps_resume_point_(engine != nullptr && nb::cast<std::string>(options.attr("on_worker_death")) == "replace") {
    pipeline::Process process{.engine = std::move(engine),
                              .graph = graph,
                              .traits = traits_,
                              .options = options_of(options, place),
                              .name = std::move(name),
                              .all_ranks = std::move(all_ranks),
                              .name_among_ranks = std::move(name_among_ranks),
                              .begin_epoch = {},
                              .poll = [this] { poll(); }};
    const nb::gil_scoped_release released;
    consumer_ = std::make_unique<pipeline::Consumer>(std::move(process));
  }
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;
  ~Consumer() {
    if (current_process() != process_) static_cast<void>(consumer_.release());
    const nb::gil_scoped_release released;
    consumer_.reset();
  }

  /// Begins the epoch after its first `items` items. `cursor`, if any, is the position after the first `at` of them.
  /// Throws InvalidArgument while another thread takes an item, whose epoch then continues.
  void reset(std::int64_t epoch, std::int64_t items, std::int64_t at, const std::optional<nb::object>& cursor) {
    ResumePoint from{.items = at, .cursor = {}};
    if (cursor) from.cursor = to_tree(*cursor, Allowed::registered);
    open_consumer();
    const auto pausing = enter_pausing();
    begin(epoch, items, std::move(from), no_limit);
  }
  /// Continues after the last item of `lost`, some of whose processes have ended, with the same limit, and paused if
  /// `lost` was. Throws InvalidArgument if the epoch now has fewer items.
  void resume_from(Consumer& lost) {
    wait_for_others(lost.taking_, Deadline::after(patience));
    const OneCaller::Call reading(lost.taking_, what);
    begin(lost.epoch_, lost.num_taken_, lost.resume_point_, lost.limit_at_);
    if (lost.paused()) pause();
  }
  /// Returns the next item of pass number `pass`, or nothing at its end, at a limit, while paused and once closed.
  std::optional<Item> next(std::int64_t pass) {
    if (pass_ != pass) {
      throw InvalidArgument("another epoch of this pipeline has begun, which ended this one's iterator");
    }
    if (closing_) return std::nullopt;
    auto& consumer = this->consumer();
    const OneCaller::Call taking(taking_, what);
    std::optional<Item> item;
    try {
      const nb::gil_scoped_release released;
      if (keeps_resume_point_ && has_place()) keep_resume_point(consumer);
      item = consumer.next();
      num_taken_ += item.has_value();
    } catch (const std::exception&) {
      if (!closing_) throw;
    }
    if (closing_) return std::nullopt;
    is_over_ = consumer.ended();
    return item;
  }
  void limit(std::int64_t items) {
    auto& consumer = open_consumer();
    take([&] {
      consumer.limit(items);
      limit_at_ = num_taken_ + std::min(items, no_limit - num_taken_);
    });
  }
  void pause() {
    auto& consumer = open_consumer();
    const auto pausing = enter_pausing();
    const nb::gil_scoped_release released;
    consumer.pause();
  }
  void resume() {
    auto& consumer = open_consumer();
    const auto pausing = enter_pausing();
    limit_at_ = no_limit;
    const nb::gil_scoped_release released;
    consumer.resume();
  }
  bool paused() const { return consumer().paused(); }
  /// Returns whether the epoch is over. Called if next() returns nothing.
  bool is_over() const { return is_over_; }
  /// Returns the number of items of this epoch that have been returned, and the latest exact cursor with the number of
  /// items at which it was saved; the cursor is None at the first item. The numbers are equal unless a stage in this
  /// process has failed.
  std::tuple<std::int64_t, std::int64_t, std::optional<nb::object>> save() {
    auto& consumer = open_consumer();
    std::int64_t taken = 0;
    ResumePoint point;
    {
      const OneCaller::Call taking(taking_, what);
      if (has_place()) resume_point_ = {num_taken_, without_gil([&] { return consumer.save(); })};
      taken = num_taken_;
      point = resume_point_;
    }
    std::optional<nb::object> plain;
    if (point.cursor) plain = Rebuilder(Allowed::registered).rebuild(*point.cursor);
    return {taken, point.items, plain};
  }

  /// Ends the call in progress on another thread and prevents further calls. Returns false in a signal handler that has
  /// interrupted a call on this thread. The caller of that interrupted call must then close the run, as
  /// close_requested() indicates.
  bool begin_close() {
    closing_ = true;
    close_requested_ = taking_.is_mine();
    return !close_requested_;
  }
  /// Waits until no other thread is in a call. Throws Timeout.
  void await_others() const {
    wait_for_others(taking_, Deadline::after(patience));
    if (taking_.is_free()) return;
    throw Timeout("this pipeline cannot be closed, because another thread has not left one of its stages");
  }
  /// Returns true once for each begin_close() that left the closing to the caller.
  bool close_requested() { return std::exchange(close_requested_, false); }
  /// Must be called after begin_close() and await_others(). Returns whether all processes have answered in time.
  bool shutdown(double grace) {
    const nb::gil_scoped_release released;
    return consumer().shutdown(duration_of(grace));
  }
  pipeline::Stats stats() const {
    const nb::gil_scoped_release released;
    return consumer().stats();
  }
  std::vector<Metric> metrics(const Graph& graph, const MetricLabels& labels) const {
    return pipeline::metrics(graph, stats(), labels);
  }

  nb::dict stats_by_stage(const Graph& graph) const {
    const auto stats = this->stats();
    nb::dict stages;
    for (std::size_t at = 0; at < stats.stages.size(); ++at) {
      const auto& of = stats.stages[at];
      nb::dict totals;
      totals["items"] = of.items;
      totals["skipped"] = of.skipped;
      totals["busy_seconds"] = of.busy_seconds();
      totals["waited_seconds"] = of.waited_seconds();
      stages[nb::cast(graph.stages()[at].name)] = totals;
    }
    nb::dict totals;
    totals["stages"] = stages;
    totals["messages"] = stats.messages;
    totals["wakeups"] = stats.wakeups;
    totals["bytes"] = stats.bytes;
    totals["copied"] = stats.copied;
    return totals;
  }

  /// Returns an encoded report::PipelineReport.
  nb::bytes report(const Graph& graph, int workers, bool ordered) const {
    Bytes report;
    {
      const nb::gil_scoped_release released;
      report = encode(report_of(graph, workers, ordered));
    }
    return to_bytes(report);
  }

  std::int64_t pass() const { return pass_; }
  std::int64_t num_taken() const { return num_taken_; }
  bool has_begun() const { return has_begun_; }

 private:
  static constexpr std::string_view what = "this pipeline run";
  static constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

  /// A cursor and the number of items at which it was saved. Without a cursor, the first item.
  struct ResumePoint {
    std::int64_t items = 0;
    std::optional<pipeline::Cursor> cursor;
  };

  void begin(std::int64_t epoch, std::int64_t items, ResumePoint from, std::int64_t limit_at) {
    auto& consumer = open_consumer();
    const OneCaller::Call taking(taking_, what);
    epoch_ = epoch;
    limit_at_ = limit_at;
    num_taken_ = items;
    resume_point_ = std::move(from);
    is_over_ = has_begun_ = false;
    without_gil([&] {
      if (!resume_point_.cursor) return consumer.reset_after(epoch, items);
      consumer.reset(epoch, resume_point_.cursor);
      for (auto item = resume_point_.items; item < items; ++item) {
        if (!consumer.next()) pipeline::throw_past_end(item, "the epoch");
      }
    });
    if (limit_at != no_limit) consumer.limit(limit_at - items);
    has_begun_ = true;
    ++pass_;
  }
  /// Returns whether a cursor after the last returned item can be saved.
  bool has_place() const { return has_begun_ && !consumer_->lost_place(); }
  /// Saves a resume point periodically, using at most 1% of the time.
  void keep_resume_point(const pipeline::Consumer& consumer) {
    const auto begun = Clock::now();
    if (begun < next_resume_point_) return;
    resume_point_ = {num_taken_, consumer.save()};
    const auto ended = Clock::now();
    next_resume_point_ = ended + 100 * (ended - begun);
  }
  report::PipelineReport report_of(const Graph& graph, int workers, bool ordered) const {
    const auto stats = consumer().stats();
    auto traces = consumer().traces();
    const auto placement = pipeline::place(graph, workers, ordered);
    const pipeline::GraphView view{.graph = graph, .placement = placement, .workers = workers, .stats = &stats};
    report::PipelineReport report{.json = pipeline::to_json(view), .finding = pipeline::describe_bottleneck(view)};
    for (std::size_t i = 0; i < stats.processes.size() && i < traces.size(); ++i) {
      auto& process = report.processes.emplace_back(
          report::ProcessReport{.name = stats.processes[i].name, .stages = {}, .trace = std::move(traces[i])});
      for (std::size_t stage = 0; stage < graph.stages().size(); ++stage) {
        const bool runs = placement.role_of[stage] == stats.processes[i].role;
        process.stages.push_back(runs ? graph.stages()[stage].name : std::string());
      }
    }
    return report;
  }
  pipeline::Consumer& consumer() const {
    if (current_process() != process_) {
      throw Unsupported(fmt::format(
          "this pipeline belongs to process {}, from which this one was forked; a child has no part in it", process_));
    }
    return *consumer_;
  }
  [[noreturn]] static void throw_closed() { throw InvalidArgument("this pipeline run has been closed"); }
  pipeline::Consumer& open_consumer() const {
    auto& consumer = this->consumer();
    if (closing_) throw_closed();
    return consumer;
  }
  /// Runs `work`, a call that only one thread at a time may make, and returns its result. Throws InvalidArgument once
  /// closed.
  template <typename Work>
  std::invoke_result_t<Work> take(Work work) {
    const OneCaller::Call taking(taking_, what);
    return without_gil(work);
  }
  template <typename Work>
  std::invoke_result_t<Work> without_gil(Work work) const {
    try {
      const nb::gil_scoped_release released;
      return work();
    } catch (const std::exception&) {
      if (closing_) throw_closed();
      throw;
    }
  }
  /// Waits for another thread that pauses or resumes.
  OneCaller::Call enter_pausing() {
    wait_for_others(pausing_, Deadline::never());
    return {pausing_, what};
  }
  /// Called on any thread that waits. Ends the taking thread's call if this is being closed, as Ctrl-C does.
  void poll() const {
    check_signals();
    if (!closing_ || !taking_.is_mine()) return;
    const nb::gil_scoped_acquire gil;
    PyErr_SetNone(PyExc_GeneratorExit);
    throw nb::python_error();
  }

  pid_t process_ = current_process();
  PythonItemTraits traits_;
  std::unique_ptr<pipeline::Consumer> consumer_;
  OneCaller taking_, pausing_;
  std::atomic<bool> closing_ = false;  ///< read without the GIL
  bool close_requested_ = false;
  std::int64_t pass_ = 0;
  bool is_over_ = false;  ///< whether this epoch is over
  bool has_begun_ = false;
  std::int64_t num_taken_ = 0;  ///< in this epoch
  std::int64_t epoch_ = 0;
  std::atomic<std::int64_t> limit_at_ = no_limit;  ///< items of this epoch after which limit() ends the loop
  const bool keeps_resume_point_;
  ResumePoint resume_point_;  ///< at or before the last returned item
  Clock::time_point next_resume_point_{};
};

std::shared_ptr<Consumer> make_consumer(const Membership* job, const Graph& graph, nb::handle options, Place place,
                                        const std::string& name, const Membership* all_ranks,
                                        const std::string& name_among_ranks) {
  const auto engine_of = [](const Membership* of) { return of == nullptr ? nullptr : of->shared(); };
  return std::make_shared<Consumer>(engine_of(job), graph, options, place, name, engine_of(all_ranks),
                                    name_among_ranks);
}

/// Returns whether a stage's function threw the error, such as the Timeout of a store that it reads.
bool is_of_stage(const Error& error) {
  const auto* failed = dynamic_cast<const pipeline::StageFailed*>(&error);
  return failed != nullptr && !failed->failure().stage.empty();
}

/// One epoch as an iterator. It is over when the next epoch begins.
class Epoch {
 public:
  /// `run` owns the consumer. Its _on_engine_error() raises the reason that a process ended, or returns the consumer
  /// that takes over.
  Epoch(nb::object run, std::shared_ptr<Consumer> consumer)
      : run_(std::move(run)), consumer_(std::move(consumer)), pass_(consumer_->pass()) {}

  nb::object next() {
    auto item = next_item();
    if (item) return object_of(*std::move(item));
    if (consumer_->close_requested()) run_.attr("close")();
    if (consumer_->is_over()) run_.attr("_end_epoch")();
    throw nb::stop_iteration();
  }

 private:
  std::optional<Item> next_item() {
    for (;;) {
      try {
        return consumer_->next(pass_);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::peer_lost && error.kind() != ErrorKind::timeout) throw;
        if (is_of_stage(error)) throw;
        const auto* lost = dynamic_cast<const PeerLost*>(&error);
        const nb::object other = run_.attr("_on_engine_error")(std::string(error.name()), std::string(error.what()),
                                                               lost == nullptr ? -1 : lost->rank());
        if (other.is_none()) throw;
        consumer_ = nb::cast<std::shared_ptr<Consumer>>(other);
        pass_ = consumer_->pass();
      }
    }
  }

  nb::object run_;
  std::shared_ptr<Consumer> consumer_;
  std::int64_t pass_;
};

}  // namespace

void bind_pipeline(nb::module_& module) {
  nb::class_<Consumer>(module, "Consumer", "The end of a pipeline that returns its items.")
      .def("reset", &Consumer::reset, nb::arg("epoch"), nb::arg("items"), nb::arg("at"), nb::arg("cursor").none(),
           nb::sig("def reset(self, epoch: int, items: int, at: int, cursor: typing.Any) -> None"),
           "Begins an epoch after its first `items` items. A cursor is after the first `at` of these.")
      .def("resume_from", &Consumer::resume_from, nb::arg("lost"),
           "Resumes after the last item of another consumer, whose processes are lost.")
      .def_prop_ro("num_taken", &Consumer::num_taken, "Number of items returned in this epoch.")
      .def_prop_ro("has_begun", &Consumer::has_begun, "Whether an epoch has begun that no reset() has ended.")
      .def("limit", &Consumer::limit, nb::arg("items"))
      .def("pause", &Consumer::pause)
      .def("resume", &Consumer::resume)
      .def_prop_ro("paused", &Consumer::paused)
      .def("save", &Consumer::save, nb::sig("def save(self) -> tuple[int, int, typing.Any]"),
           "Returns the number of items returned so far, the number at the latest exact cursor, and that cursor; None "
           "means the first item.")
      .def("begin_close", &Consumer::begin_close,
           "Ends another thread's call and prevents further ones. Returns False if a call of this thread is in "
           "progress, which must then close the run.")
      .def("await_others", &Consumer::await_others, "Waits until no other thread is in a call.")
      .def("close_requested", &Consumer::close_requested,
           "Returns True once after each begin_close() that left the closing to this thread.")
      .def("shutdown", &Consumer::shutdown, nb::arg("grace"))
      .def("stats", &Consumer::stats_by_stage, nb::arg("graph"),
           nb::sig("def stats(self, graph: Graph) -> dict[str, typing.Any]"))
      .def("metrics", &Consumer::metrics, nb::arg("graph"), nb::arg("labels"),
           "Returns the metrics, each with these labels.")
      .def("report", &Consumer::report, nb::arg("graph"), nb::arg("workers"), nb::arg("ordered"),
           "Returns the recorded activity of each process, encoded.");
  module.def(
      "show_graph",
      [](const Graph& graph, const std::string& format, int workers, bool ordered, const Consumer* at_work) {
        const auto stats = at_work == nullptr ? std::nullopt : std::optional(at_work->stats());
        return show(graph, format, workers, ordered, stats ? &*stats : nullptr);
      },
      nb::arg("graph"), nb::arg("format"), nb::arg("workers"), nb::arg("ordered"), nb::arg("at_work").none(),
      "Returns the stages and their processes; for a running pipeline, also its bottleneck.");
  nb::class_<Epoch>(module, "Epoch", "The items of one epoch.")
      .def(nb::init<nb::object, std::shared_ptr<Consumer>>(), nb::arg("run"), nb::arg("consumer"))
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> Epoch"))
      .def("__next__", &Epoch::next, nb::sig("def __next__(self) -> typing.Any"));
  module.def("consume", &make_consumer, nb::arg("job").none(), nb::arg("graph"), nb::arg("options"), nb::arg("place"),
             nb::arg("name"), nb::arg("all_ranks").none(), nb::arg("name_among_ranks"),
             nb::sig("def consume(job: Membership | None, graph: Graph, options: object, place: tuple[int, int], "
                     "name: str, all_ranks: Membership | None, name_among_ranks: str) -> Consumer"),
             "Returns the consumer of a pipeline, whose other processes are `job`. place: the rank and the number of "
             "ranks that run the pipeline. name_among_ranks: distinguishes it from other pipelines of the same ranks.");
  module.def("serve", &serve, nb::arg("job"), nb::arg("graph"), nb::arg("options"), nb::arg("place"), nb::arg("name"),
             nb::arg("begin_epoch").none(),
             nb::sig("def serve(job: Membership, graph: Graph, options: object, place: tuple[int, int], name: str, "
                     "begin_epoch: object | None) -> None"),
             "Runs the dispatching process or a worker.");
}

}  // namespace levada::python
