#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "levada/reduce/bucketer.h"
#include "levada/reduce/bucketing.h"
#include "python/src/base/callables.h"
#include "python/src/base/process.h"
#include "python/src/batch/tensors.h"
#include "python/src/bindings.h"
#include "python/src/job/launch.h"
#include "python/src/job/waiting.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

constexpr double max_capacity_mb = 1 << 20;

ReduceOp op_of(const std::string& name) {
  if (name == "sum") return ReduceOp::sum;
  if (name == "average") return ReduceOp::average;
  throw InvalidArgument(fmt::format("op is \"{:.40}\"; it must be one of sum, average", name));
}

/// The tensors that a caller has passed, with owners that keep their elements alive. Made and destroyed with the GIL.
class InputTensors {
 public:
  /// Throws TypeError if the input is not a tensor.
  static InputTensors one(const TensorLibraries& libraries, nb::handle input) {
    InputTensors tensors;
    tensors.is_single_ = tensors.add(libraries, input, "input");
    if (!tensors.is_single_) throw nb::type_error("input is not a tensor");
    return tensors;
  }
  /// Accepts one tensor or an iterable of tensors; an error names the position.
  static InputTensors some(const TensorLibraries& libraries, nb::handle inputs) {
    InputTensors tensors;
    const bool is_listed = PyList_CheckExact(inputs.ptr()) || PyTuple_CheckExact(inputs.ptr());
    tensors.is_single_ = !is_listed && tensors.add(libraries, inputs, "input");
    if (tensors.is_single_) return tensors;
    for (const nb::handle each : nb::iter(inputs)) {
      if (tensors.add(libraries, each, {})) continue;
      throw nb::type_error(fmt::format("inputs[{}] is not a tensor", tensors.views_.size()).c_str());
    }
    return tensors;
  }

  bool is_single() const { return is_single_; }
  /// Returns the only view.
  const TensorView& view() const { return views_.front(); }
  std::span<const TensorView> views() const { return views_; }
  TensorKind kind() const { return kind_; }

 private:
  bool add(const TensorLibraries& libraries, nb::handle value, std::string path) {
    if (const auto plain = libraries.plain_view(value)) {
      kind_ = TensorKind::torch;
      views_.push_back(*plain);
      objects_.push_back(nb::borrow(value));
      return true;
    }
    if (!libraries.is_tensor(value, kind_)) return false;
    if (path.empty()) path = fmt::format("inputs[{}]", views_.size());
    views_.push_back(tensors_.emplace_back(libraries.from_python(value, kind_, path)));
    return true;
  }

  std::vector<TensorView> views_;
  std::vector<nb::object> objects_;  ///< owners of the elements that `views_` show in place
  std::vector<Tensor> tensors_;      ///< tensors converted from other objects
  TensorKind kind_{};
  bool is_single_ = false;
};

/// A result that may still be pending, and the kind of tensor that it becomes.
class ReduceHandle {
 public:
  ReduceHandle(Bucketer::Handle handle, TensorKind kind) : handle_(std::move(handle)), kind_(kind) {}
  bool done() const { return handle_.done(); }
  nb::object wait() const {
    return result([this] { return handle_.wait(); });
  }
  nb::object get() const {
    return result([this] {
      while (!handle_.is_reduced(Deadline::after(std::chrono::milliseconds(50)))) check_signals();
      return handle_.get();
    });
  }

 private:
  template <typename Get>
  nb::object result(Get get) const {
    std::optional<Tensor> tensor;
    {
      const nb::gil_scoped_release released;
      tensor = get();
    }
    return TensorLibraries().to_python(*tensor, kind_);
  }

  Bucketer::Handle handle_;
  TensorKind kind_;
};

class PythonBucketer {
 public:
  PythonBucketer(double capacity_mb, int in_flight, double timeout, std::string name, int job_rank) {
    if (!(0 <= capacity_mb && capacity_mb <= max_capacity_mb)) {
      throw InvalidArgument(fmt::format("capacity_mb must be from 0 to {}, got {}", max_capacity_mb, capacity_mb));
    }
    if (!(timeout > 0)) throw InvalidArgument(fmt::format("timeout must be positive, got {} seconds", timeout));
    const BucketerOptions options{.capacity = static_cast<std::int64_t>(capacity_mb * (1 << 20)),
                                  .in_flight = in_flight,
                                  .timeout = duration_of(timeout),
                                  .poll = SignalPoll(),
                                  .name = std::move(name),
                                  .job_rank = job_rank};
    bucketer_ = {new Bucketer(options), [](const Bucketer* last) {
                   const nb::gil_scoped_release released;  // its threads may wait for the GIL
                   delete last;
                 }};
  }
  PythonBucketer(const PythonBucketer&) = delete;
  PythonBucketer& operator=(const PythonBucketer&) = delete;
  ~PythonBucketer() {
    // In a forked child, the threads belong to the parent.
    if (current_process() != process_) static_cast<void>(new std::shared_ptr<Bucketer>(std::move(bucketer_)));
  }

  ReduceHandle reduce_scatter(const Membership& job, nb::handle inputs, const std::string& op, nb::object callback) {
    auto engine = job.shared();
    const auto bucketer = open();
    const ReduceOp how = op_of(op);
    const auto tensors = InputTensors::some(known_libraries(), inputs);
    auto call = called(std::move(callback), tensors.kind());
    const EngineWithoutGil group(std::move(engine));
    auto handle = tensors.is_single()
                      ? bucketer->reduce_scatter(group.shared(), Tensor(tensors.view(), {}), how, std::move(call))
                      : bucketer->reduce_scatter(group.shared(), tensors.views(), how, std::move(call));
    return {std::move(handle), tensors.kind()};
  }

  ReduceHandle all_reduce(const Membership& job, nb::handle input, const std::string& op, nb::object callback) {
    auto engine = job.shared();
    const auto bucketer = open();
    const auto tensors = InputTensors::one(known_libraries(), input);
    const ReduceOp how = op_of(op);
    auto call = called(std::move(callback), tensors.kind());
    const EngineWithoutGil group(std::move(engine));
    return {bucketer->all_reduce(group.shared(), tensors.view(), how, std::move(call)), tensors.kind()};
  }

  ReduceHandle all_gather(const Membership& job, nb::handle input, nb::object callback) {
    auto engine = job.shared();
    const auto bucketer = open();
    const auto tensors = InputTensors::one(known_libraries(), input);
    auto call = called(std::move(callback), tensors.kind());
    const EngineWithoutGil group(std::move(engine));
    return {bucketer->all_gather(group.shared(), tensors.view(), std::move(call)), tensors.kind()};
  }

  nb::object empty(const Membership& job, const std::vector<std::int64_t>& shape, const std::string& dtype,
                   bool torch) {
    auto engine = job.shared();
    const auto bucketer = open();
    std::optional<Tensor> made;
    {
      const EngineWithoutGil group(std::move(engine));
      made = bucketer->empty(group.shared(), DType::parse(dtype), Shape(shape));
    }
    return TensorLibraries().to_python(*made, torch ? TensorKind::torch : TensorKind::array);
  }

  void flush() {
    const auto bucketer = open();
    const nb::gil_scoped_release released;
    bucketer->flush();
  }
  void teardown() {
    const auto bucketer = open();
    const nb::gil_scoped_release released;
    bucketer->teardown();
  }
  void close() {
    if (current_process() == process_) bucketer_.reset();
  }
  nb::dict stats() const {
    const auto stats = open()->stats();
    nb::dict result;
    result["inputs"] = stats.inputs;
    result["buckets"] = stats.buckets;
    result["alone"] = stats.alone;
    result["flushes"] = stats.flushes;
    result["bytes"] = stats.bytes;
    result["bytes_copied"] = stats.bytes_copied;
    result["waited_seconds"] = std::chrono::duration<double>(stats.waited).count();
    return result;
  }

 private:
  /// Returns the bucketer, which the caller must keep alive until its call has ended.
  std::shared_ptr<Bucketer> open() const {
    if (current_process() != process_) {
      throw Unsupported("this process was forked from the one that made this ReduceScatter; make a new one");
    }
    if (!bucketer_) throw InvalidArgument("this ReduceScatter is closed");
    return bucketer_;
  }

  const TensorLibraries& known_libraries() {
    libraries_->refresh();
    return *libraries_;
  }

  /// Returns a function that a handle's wait() may call after this object is destroyed.
  Bucketer::Callback called(nb::object callback, TensorKind kind) {
    if (callback.is_none()) return {};
    const std::shared_ptr<nb::object> shared(new nb::object(std::move(callback)), DeleteWithGil());
    return [libraries = libraries_, shared, kind](const Tensor& result) {
      const nb::gil_scoped_acquire held;
      libraries->refresh();
      (*shared)(libraries->to_python(result, kind));
    };
  }

  pid_t process_ = current_process();
  std::shared_ptr<TensorLibraries> libraries_{new TensorLibraries, DeleteWithGil()};
  std::shared_ptr<Bucketer> bucketer_;
};

}  // namespace

void bind_reduce(nb::module_& module) {
  nb::class_<ReduceHandle>(module, "ReduceHandle", "A future result.")
      .def("done", &ReduceHandle::done, "Returns whether the reduction has ended, with a result or with an exception.")
      .def("wait", &ReduceHandle::wait, nb::sig("def wait(self) -> typing.Any"),
           "Waits for the result. If the input's bucket is open, launches it and all buckets of its group that were "
           "opened earlier; all ranks of the group must do so at the same point. Raises the reduction's exception.")
      .def("get", &ReduceHandle::get, nb::sig("def get(self) -> typing.Any"),
           "Returns the result of a launched input, on any thread. Runs no callback. Raises InvalidArgument if the "
           "bucket is open.");
  nb::class_<Bucketing>(module, "Bucketing", "Decides when buckets are launched: the same on all ranks.")
      .def(nb::init<std::int64_t>(), nb::arg("capacity"))
      .def(
          "apply",
          [](Bucketing& bucketing, int group, int key, std::uint64_t bytes) {
            const auto placement = bucketing.apply(group, key, bytes);
            return std::tuple(placement.close, placement.alone);
          },
          nb::arg("group"), nb::arg("key"), nb::arg("bytes"),
          "Places an input. Returns the key of the bucket to launch first, and whether to launch the input separately.")
      .def("undo", &Bucketing::undo, nb::arg("key"), nb::arg("bytes"),
           "Removes the last input, which must not be one to launch separately. A bucket that it closed stays closed.")
      .def("flush", &Bucketing::flush, "Closes all buckets. Returns their keys in the order in which they were opened.")
      .def("flush_through", &Bucketing::flush_through, nb::arg("key"),
           "Closes the bucket of `key` and all buckets of its group that were opened earlier. Returns their keys in "
           "this order.");
  nb::class_<PythonBucketer>(module, "Bucketer", "Reduces tensors of groups of ranks in buckets.")
      .def(nb::init<double, int, double, std::string, int>(), nb::kw_only(), nb::arg("capacity_mb"),
           nb::arg("in_flight"), nb::arg("timeout"), nb::arg("name"), nb::arg("job_rank"))
      .def("reduce_scatter", &PythonBucketer::reduce_scatter, nb::arg("job"), nb::arg("inputs"), nb::arg("op"),
           nb::arg("callback").none())
      .def("all_reduce", &PythonBucketer::all_reduce, nb::arg("job"), nb::arg("input"), nb::arg("op"),
           nb::arg("callback").none())
      .def("all_gather", &PythonBucketer::all_gather, nb::arg("job"), nb::arg("input"), nb::arg("callback").none())
      .def("empty", &PythonBucketer::empty, nb::arg("job"), nb::arg("shape"), nb::arg("dtype"), nb::arg("torch"),
           nb::sig("def empty(self, job: Membership, shape: collections.abc.Sequence[int], dtype: str, torch: bool) -> "
                   "typing.Any"))
      .def("flush", &PythonBucketer::flush)
      .def("teardown", &PythonBucketer::teardown)
      .def("close", &PythonBucketer::close, "Cancels pending reductions. Must be the last call.")
      .def_prop_ro("stats", &PythonBucketer::stats, nb::sig("def stats(self) -> dict[str, typing.Any]"));
}

}  // namespace levada::python
