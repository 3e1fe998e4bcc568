#include "python/src/pipeline/stages.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/one_caller.h"
#include "levada/pipeline/cursors.h"
#include "levada/tree/codec.h"
#include "python/src/base/callables.h"
#include "python/src/base/escaped_text.h"
#include "python/src/batch/rebuild.h"
#include "python/src/batch/trees.h"
#include "python/src/bindings.h"
#include "python/src/pipeline/failures.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

using pipeline::Cursor;
using pipeline::Item;
using pipeline::IteratorPtr;
using pipeline::OpenContext;

nb::object call(nb::handle function, nb::handle argument) {
  PyObject* const arguments[] = {argument.ptr()};
  auto result = nb::steal(PyObject_Vectorcall(function.ptr(), arguments, 1, nullptr));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

/// Returns nothing after the last item.
std::optional<nb::object> next_of(nb::handle iterator) {
  PyObject* item = PyIter_Next(iterator.ptr());
  if (item != nullptr) return nb::steal(item);
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return std::nullopt;
}

nb::object iterator_of(nb::handle iterable) {
  auto iterator = nb::steal(PyObject_GetIter(iterable.ptr()));
  if (!iterator.is_valid()) throw nb::python_error();
  return iterator;
}

/// The position in an iterable. "num_outputs": number of items yielded; "state": its state_dict(), encoded; "inputs":
/// cursors of its inputs.
struct Position {
  static constexpr std::string_view name = "an iterable";

  std::int64_t num_outputs = 0;
  std::optional<Bytes> state;
  std::vector<Cursor> inputs;

  Cursor encode() const {
    std::vector<std::pair<Key, Tree>> fields;
    fields.emplace_back("stage", std::string(name));
    fields.emplace_back("num_outputs", num_outputs);
    if (state) fields.emplace_back("state", *state);
    if (!inputs.empty()) fields.emplace_back("inputs", Tree::list(inputs));
    return Tree::dict(std::move(fields));
  }
  static Position decode(const Cursor& cursor) {
    const pipeline::CursorFields fields(cursor, name);
    Position position{.num_outputs = fields.count("num_outputs"), .state = {}, .inputs = {}};
    if (fields.has("state")) position.state = fields.bytes("state");
    if (fields.has("inputs")) position.inputs = pipeline::list_in_cursor(fields.at("inputs"), name);
    return position;
  }
};

/// The items of an iterable that is created on first use. Its state is kept as plain values, which may contain pickles
/// only if those are allowed.
class PythonIterator : public pipeline::Iterator {
 public:
  explicit PythonIterator(bool allow_pickle) : allow_pickle_(allow_pickle) {}

  std::optional<Item> next() override {
    return in_python([&]() -> std::optional<Item> {
      if (!opened_) open(0);
      auto item = next_of(opened_->iterator);
      if (!item) return std::nullopt;
      ++opened_->at;
      return item_of(*std::move(item));
    });
  }
  std::int64_t skip(std::int64_t items) override {
    if (opened_ || start_.state || items == 0) return Iterator::skip(items);
    return in_python([&] { return open(items); });
  }
  Cursor save() const override {
    Position position = start_;
    if (opened_) {
      position.num_outputs = opened_->at;
      position.state = own_state();
    }
    position.inputs = opened_ && !position.state ? start_of_inputs_ : save_inputs();
    return position.encode();
  }
  void restore(const Cursor& cursor) override { start_ = Position::decode(cursor); }

 protected:
  /// Releases the iterator and the objects that it holds.
  void drop() { opened_.reset(); }
  /// An iterator whose next item has the index `at`, and its state_dict() or None.
  struct OpenIterator {
    nb::object iterator, state_dict;
    std::int64_t at = 0;
  };
  /// Opens the iterable at `start`: at its state if it has one, otherwise at its item number or as close before it as
  /// possible.
  virtual OpenIterator make(const Position& start) = 0;
  nb::object rebuilt(const Bytes& state) const {
    return Rebuilder(allowed_in_states(allow_pickle_)).rebuild(pipeline::unpack_cursor(state));
  }
  /// Begins iteration at the state of `start`, or at the first item without a state.
  OpenIterator resumed(nb::handle iterable, const Position& start) const {
    if (start.state) iterable.attr("load_state_dict")(rebuilt(*start.state));
    return {.iterator = iterator_of(iterable),
            .state_dict = nb::getattr(iterable, "state_dict", nb::none()),
            .at = start.state ? start.num_outputs : 0};
  }
  /// Returns the cursors of its inputs, even while it is not open, since they determine which items it has yet to read.
  virtual std::vector<Cursor> save_inputs() const { return {}; }

  const Position& start() const { return start_; }

  std::vector<Cursor> start_of_inputs_;  ///< from which an iterable without a state is recreated

 private:
  /// Opens the iterable at its restored position, skips `items` more and returns how many there were.
  std::int64_t open(std::int64_t items) {
    const auto restored = start_.num_outputs;
    start_.num_outputs += items;
    opened_.reset(new OpenIterator(make(start_)));
    auto& [iterator, state_dict, at] = *opened_;
    while (at < start_.num_outputs && next_of(iterator)) ++at;
    if (at >= restored) return at - restored;
    throw InvalidArgument(fmt::format("the state is of item {}, but the iterable has only {}", restored, at));
  }

  /// Returns nothing if the iterable has no state or none that can be kept; it then skips the items that it has
  /// returned.
  std::optional<Bytes> own_state() const {
    return in_python([&]() -> std::optional<Bytes> {
      if (opened_->state_dict.is_none()) return std::nullopt;
      nb::object state;
      try {
        state = opened_->state_dict();
      } catch (const nb::python_error& error) {
        const bool can_count = !start_.state || start_.inputs.empty();  // its inputs are at their first items
        if (!error.matches(PyExc_Exception) || !can_count) throw;
        warn(fmt::format(
            "a source's state_dict() raised {}, so that a run that resumes makes the items before its state again: {}",
            escaped_str(error.type().attr("__name__")), escaped_str(error.value())));
        opened_->state_dict = nb::none();
        return std::nullopt;
      }
      try {
        return encode_tree(to_tree(state, allowed_in_states(allow_pickle_), "state"));
      } catch (const nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
        warn_of(escaped_str(error.value()));
      } catch (const nb::builtin_exception& error) {
        warn_of(error.what());
      } catch (const Error& error) {
        warn_of(error.what());
      }
      opened_->state_dict = nb::none();
      return std::nullopt;
    });
  }
  static void warn_of(const std::string& why) {
    warn(fmt::format(
        "what a source's state_dict() returns cannot be kept, so that going on reads again what was given before; "
        "return a few plain values and arrays, or call run(allow_pickle=True): {}",
        why));
  }
  static void warn(const std::string& text) {
    if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) throw nb::python_error();
  }

  bool allow_pickle_;
  Position start_;
  std::unique_ptr<OpenIterator, DeleteWithGil> opened_;
};

class SourceIterator final : public PythonIterator {
 public:
  SourceIterator(Shared open, OpenContext open_context, pipeline::Partition partition, bool allow_pickle)
      : PythonIterator(allow_pickle), open_(std::move(open)), open_context_(open_context), partition_(partition) {}

 private:
  OpenIterator make(const Position& start) override {
    const nb::object state = start.state ? rebuilt(*start.state) : nb::none();
    const nb::tuple made =
        nb::cast<nb::tuple>(open_.get()(open_context_, partition_.index, partition_.count, start.num_outputs, state));
    return {.iterator = made[0], .state_dict = made[1], .at = nb::cast<std::int64_t>(made[2])};
  }

  Shared open_;
  OpenContext open_context_;
  pipeline::Partition partition_;
};

class PythonItemSource final : public pipeline::ItemSource {
 public:
  PythonItemSource(Shared open, std::string description, DividesItself divides, bool allow_pickle)
      : open_(std::move(open)), description_(std::move(description)), divides_(divides), allow_pickle_(allow_pickle) {}
  std::string describe() const override { return description_; }
  bool divides() const override { return divides_ != DividesItself::no; }
  bool divides_in_turns() const override { return divides_ == DividesItself::in_turns; }
  IteratorPtr open(const OpenContext& open_context, pipeline::Partition partition) const override {
    return std::make_unique<SourceIterator>(open_, open_context, partition, allow_pickle_);
  }

 private:
  Shared open_;
  std::string description_;
  DividesItself divides_;
  bool allow_pickle_;
};

/// The items that a function makes of one item.
class MadeIterator final : public PythonIterator {
 public:
  MadeIterator(nb::object iterable, bool allow_pickle) : PythonIterator(allow_pickle), iterable_(std::move(iterable)) {}

 private:
  OpenIterator make(const Position& start) override { return resumed(iterable_.get(), start); }

  Shared iterable_;
};

/// A stage before a transform, as passed to Python. Closed when the transform ends, even if this object is still
/// referenced. Only the thread that is in a call of the transform may request items: others would race with the
/// transform's end and with its cursor.
class StageIterator {
 public:
  /// `transform` tracks the thread that is in a call of the transform.
  StageIterator(IteratorPtr iterator, std::shared_ptr<const OneCaller> transform)
      : iterator_(std::move(iterator)), transform_(std::move(transform)) {}

  nb::object next() {
    if (closed_) throw InvalidArgument("the epoch of this iterator is over");
    if (!transform_->is_mine()) {
      throw Unsupported(
          "the function of transform() requests items on another thread, which a stage cannot serve; request "
          "them on the thread that calls the function, and put prefetch() before or after the transform() to make "
          "items ahead");
    }
    auto item = next_item();
    if (!item) throw nb::stop_iteration();
    return object_of(*std::move(item));
  }
  Cursor save() const { return iterator_->save(); }
  void restore(const Cursor& cursor) { iterator_->restore(cursor); }
  /// Must be called without the GIL, which the iterator's threads may need before they end.
  void close() {
    closed_ = true;
    iterator_.reset();
  }

 private:
  std::optional<Item> next_item() {
    try {
      const nb::gil_scoped_release released;
      return iterator_->next();
    } catch (const nb::python_error& raised) {
      throw nb::python_error(raised);  // raising it in Python consumes one, and the stage after this throws it too
    }
  }

  IteratorPtr iterator_;
  std::shared_ptr<const OneCaller> transform_;
  std::atomic<bool> closed_ = false;  ///< read on any thread
};

class TransformIterator final : public PythonIterator {
 public:
  TransformIterator(Shared open, std::vector<IteratorPtr> inputs, OpenContext open_context, bool allow_pickle)
      : PythonIterator(allow_pickle), open_(std::move(open)), open_context_(open_context) {
    for (auto& input : inputs) inputs_.push_back(std::make_shared<StageIterator>(std::move(input), caller_));
  }
  std::optional<Item> next() override {
    const auto inside = enter();
    return PythonIterator::next();
  }
  std::int64_t skip(std::int64_t items) override {
    const auto inside = enter();
    return PythonIterator::skip(items);
  }
  Cursor save() const override {
    const auto inside = enter();
    return PythonIterator::save();
  }
  void restore(const Cursor& cursor) override {
    PythonIterator::restore(cursor);
    if (const auto& cursors = start().inputs; !cursors.empty()) restore_inputs(cursors);
  }
  ~TransformIterator() override {
    {
      const auto inside = enter();  // a generator that is closed may request more items
      drop();
    }
    for (const auto& input : inputs_) input->close();
  }

 private:
  OpenIterator make(const Position& start) override {
    start_of_inputs_ = save_inputs();
    nb::list iterators;
    for (const auto& input : inputs_) iterators.append(nb::cast(input));
    return resumed(open_.get()(iterators, open_context_), start);
  }
  void restore_inputs(const std::vector<Cursor>& cursors) {
    if (cursors.size() != inputs_.size())
      throw InvalidArgument("the state belongs to a transform with a different number of inputs");
    for (std::size_t at = 0; at < inputs_.size(); ++at) inputs_[at]->restore(cursors[at]);
  }
  std::vector<Cursor> save_inputs() const override {
    std::vector<Cursor> cursors;
    for (const auto& input : inputs_) cursors.push_back(input->save());
    return cursors;
  }
  /// Lets this thread request items of the inputs. Calls nest, since skip() calls next().
  OneCaller::Call enter() const { return {*caller_, "this transform", OneCaller::Nested::allowed}; }

  Shared open_;
  std::shared_ptr<OneCaller> caller_ = std::make_shared<OneCaller>();
  std::vector<std::shared_ptr<StageIterator>> inputs_;
  OpenContext open_context_;
};

/// Items of another iterator as Python objects.
class ShownIterator final : public pipeline::Iterator {
 public:
  ShownIterator(IteratorPtr iterator, TensorKind kind) : iterator_(std::move(iterator)), kind_(kind) {}
  std::optional<Item> next() override {
    auto item = iterator_->next();
    if (!item) return item;
    return in_python([&] {
      const Item taken = *std::move(item);
      if (!rebuilder_) rebuilder_.reset(new Rebuilder(Allowed::registered, TensorAccess::as_is, kind_));
      return item_of(rebuilder_->rebuild(std::get<Tree>(taken)));
    });
  }
  std::int64_t skip(std::int64_t items) override { return iterator_->skip(items); }
  Cursor save() const override { return iterator_->save(); }
  void restore(const Cursor& cursor) override { iterator_->restore(cursor); }

 private:
  IteratorPtr iterator_;
  TensorKind kind_;
  std::unique_ptr<Rebuilder, DeleteWithGil> rebuilder_;
};

class ShownItemSource final : public pipeline::ItemSource {
 public:
  ShownItemSource(std::shared_ptr<const ItemSource> items, TensorKind kind) : items_(std::move(items)), kind_(kind) {}
  std::string describe() const override { return items_->describe(); }
  std::string identity() const override { return fmt::format("{} {}", items_->identity(), static_cast<int>(kind_)); }
  bool divides() const override { return items_->divides(); }
  bool divides_in_turns() const override { return items_->divides_in_turns(); }
  IteratorPtr open(const OpenContext& open_context, pipeline::Partition partition) const override {
    return std::make_unique<ShownIterator>(items_->open(open_context, partition), kind_);
  }

 private:
  std::shared_ptr<const ItemSource> items_;
  TensorKind kind_;
};

}  // namespace

std::shared_ptr<const pipeline::ItemSource> shown_source(std::shared_ptr<const pipeline::ItemSource> trees,
                                                         TensorKind kind) {
  return std::make_shared<ShownItemSource>(std::move(trees), kind);
}

std::shared_ptr<const pipeline::ItemSource> python_source(nb::object open, std::string description,
                                                          DividesItself divides, bool allow_pickle) {
  return std::make_shared<PythonItemSource>(Shared(std::move(open)), std::move(description), divides, allow_pickle);
}

pipeline::Map map_of(nb::object function, pipeline::OnError on_error, int threads) {
  const auto apply = [function = Shared(std::move(function))](Item item) {
    return in_python([&] { return item_of(call(function.get(), object_of(std::move(item)))); });
  };
  return {.function = apply, .on_error = on_error, .threads = threads};
}

pipeline::Filter filter_of(nb::object predicate, pipeline::OnError on_error) {
  const auto apply = [predicate = Shared(std::move(predicate))](const Item& item) {
    return in_python([&] {
      const int kept = PyObject_IsTrue(call(predicate.get(), object_of_const(item)).ptr());
      if (kept < 0) throw nb::python_error();
      return kept == 1;
    });
  };
  return {.predicate = apply, .on_error = on_error};
}

std::function<std::int64_t(const Item&)> length_of(nb::object length) {
  return [length = Shared(std::move(length))](const Item& item) {
    return in_python([&] {
      const nb::object given = call(length.get(), object_of_const(item));
      const auto number = nb::steal(PyNumber_Index(given.ptr()));
      if (!number.is_valid()) throw nb::python_error();
      const auto count = PyLong_AsLongLong(number.ptr());
      if (count == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
      return static_cast<std::int64_t>(count);
    });
  };
}

pipeline::FlatMap flat_map_of(nb::object function, pipeline::OnError on_error, bool allow_pickle) {
  const auto apply = [function = Shared(std::move(function)), allow_pickle](Item item) -> IteratorPtr {
    return in_python(
        [&] { return std::make_unique<MadeIterator>(call(function.get(), object_of(std::move(item))), allow_pickle); });
  };
  return {.function = apply, .on_error = on_error};
}

pipeline::Transform transform_of(nb::object open, std::string what, bool allow_pickle) {
  const auto apply = [open = Shared(std::move(open)), allow_pickle](std::vector<IteratorPtr> inputs,
                                                                    const OpenContext& open_context) -> IteratorPtr {
    return std::make_unique<TransformIterator>(open, std::move(inputs), open_context, allow_pickle);
  };
  return {.what = std::move(what), .open = apply};
}

void bind_stages(nb::module_& module) {
  const auto part = [](const pipeline::Partition& partition) { return std::pair(partition.index, partition.count); };
  nb::class_<OpenContext>(module, "OpenContext", "The parameters with which a process opens its copy of a stage.")
      .def_ro("epoch", &OpenContext::epoch)
      .def_ro("pass_number", &OpenContext::pass_number,
              "The epoch of the pipeline, and the number of the pass of each enclosing repeat(), the outermost first.")
      .def_ro("shared_seed", &OpenContext::shared_seed,
              "The seed of the epoch, the same in all processes of all ranks.")
      .def_ro("own_seed", &OpenContext::own_seed, "The seed of the epoch, the rank and the worker.")
      .def_prop_ro("among_ranks", [part](const OpenContext& open_context) { return part(open_context.among_ranks); })
      .def_prop_ro("among_all", [part](const OpenContext& open_context) { return part(open_context.among_all); });
  nb::class_<StageIterator>(module, "StageIterator", "The items of a stage.")
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> StageIterator"))
      .def("__next__", &StageIterator::next, nb::sig("def __next__(self) -> typing.Any"));
}

}  // namespace levada::python
