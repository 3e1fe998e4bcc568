#include "python/src/pipeline/pickling.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/pipeline/tree_item_traits.h"
#include "python/src/base/escaped_text.h"
#include "python/src/batch/rebuild.h"
#include "python/src/batch/trees.h"
#include "python/src/bindings.h"
#include "python/src/pipeline/failures.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

/// Smaller buffers are stored in the pickle, because a separate buffer costs more.
constexpr Py_ssize_t min_buffer_bytes = 1024;

/// The kind of Arrays that contain a torch tensor; 0 if all are returned as numpy's.
constexpr int torch_arrays = 1;

/// Memory that Python objects may view.
class Memory {
 public:
  Memory(std::span<std::byte> bytes, std::shared_ptr<const void> hold) : bytes_(bytes), hold_(std::move(hold)) {}
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<const void> hold_;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto bytes = nb::inst_ptr<Memory>(self)->bytes();
  return PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()), 0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

nb::object memory_object(std::span<std::byte> bytes, std::shared_ptr<const void> hold) {
  return nb::cast(Memory(bytes, std::move(hold)));
}

nb::list list_of_objects(std::span<const pipeline::Item> items) {
  auto list = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(items.size())));
  if (!list.is_valid()) throw nb::python_error();
  for (std::size_t at = 0; at < items.size(); ++at) {
    PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(at), object_of_const(items[at]).release().ptr());
  }
  return list;
}

std::vector<pipeline::Item> items_of(nb::handle iterable) {
  const auto fast = nb::steal(PySequence_Fast(iterable.ptr(), "a batch is made of items"));
  if (!fast.is_valid()) throw nb::python_error();
  const auto count = PySequence_Size(fast.ptr());
  std::vector<pipeline::Item> items;
  items.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t at = 0; at < count; ++at) {
    items.push_back(item_of(nb::steal(PySequence_GetItem(fast.ptr(), at))));
  }
  return items;
}

/// The output of a pickler, which also decides about each buffer.
class Sink {
 public:
  void write(nb::handle bytes) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_Check(bytes.ptr())) {
      PyBytes_AsStringAndSize(bytes.ptr(), &data, &size);
      append(data, size);
      return;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(bytes.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
    append(static_cast<const char*>(view.buf), view.len);
    PyBuffer_Release(&view);
  }
  /// Returns whether the buffer is stored in the pickle.
  bool keep(nb::handle buffer) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_FULL_RO) != 0) throw nb::python_error();
    const bool kept = view.len < min_buffer_bytes || PyBuffer_IsContiguous(&view, 'A') == 0;
    if (!kept) {
      packed.buffers.emplace_back(static_cast<const std::byte*>(view.buf), static_cast<std::size_t>(view.len));
      hold(nb::borrow(buffer));  // a PickleBuffer, which owns that memory
    }
    PyBuffer_Release(&view);
    return kept;
  }
  /// Keeps an object as long as the packed items.
  void hold(nb::object object) {
    if (!objects) objects = {new std::vector<nb::object>(), DeleteWithGil()};
    objects->push_back(std::move(object));
  }

  pipeline::ItemTraits::Packed packed;
  std::shared_ptr<std::vector<nb::object>> objects;

 private:
  void append(const char* data, Py_ssize_t size) {
    const auto bytes = as_bytes({data, static_cast<std::size_t>(size)});
    packed.head.insert(packed.head.end(), bytes.begin(), bytes.end());
  }
};

/// Determines whether two items contain the same object. If such items were pickled together, they would share the
/// object in the other process as well, but only within one message, and a stage that writes to one item would change
/// the other.
class SharedObjects {
 public:
  bool are_in(std::span<const pipeline::Item> items) {
    for (const auto& item : items) {
      ++item_;
      const auto* object = std::get_if<pipeline::LanguageObject>(&item);
      if (object != nullptr && is_shared(static_cast<PyObject*>(object->object()), 0)) return true;
    }
    return false;
  }

 private:
  static constexpr int max_depth = 50;

  bool is_shared(PyObject* object, int depth) {
    if (is_constant(object)) return false;
    const auto [at, is_new] = items_.try_emplace(object, item_);
    if (!is_new) return at->second != item_;
    if (depth == max_depth) return true;  // possibly
    if (PyList_Check(object)) {
      for (Py_ssize_t i = 0; i < PyList_Size(object); ++i) {
        if (is_shared(PyList_GetItem(object, i), depth + 1)) return true;
      }
    } else if (PyTuple_Check(object)) {
      for (Py_ssize_t i = 0; i < PyTuple_Size(object); ++i) {
        if (is_shared(PyTuple_GetItem(object, i), depth + 1)) return true;
      }
    } else if (PyDict_Check(object)) {
      PyObject *key = nullptr, *value = nullptr;
      for (Py_ssize_t i = 0; PyDict_Next(object, &i, &key, &value) != 0;) {
        if (is_shared(value, depth + 1)) return true;
      }
    } else if (auto& has_fields = has_fields_.try_emplace(Py_TYPE(object), true).first->second) {
      const auto fields = nb::steal(PyObject_GetAttrString(object, "__dict__"));
      if (!fields.is_valid()) PyErr_Clear();
      has_fields = fields.is_valid() && PyDict_CheckExact(fields.ptr());
      if (has_fields) return is_shared(fields.ptr(), depth + 1);
    }
    return false;
  }

  int item_ = 0;
  std::unordered_map<PyObject*, int> items_;  ///< first item that contains each object
  std::unordered_map<PyTypeObject*, bool> has_fields_;
};

/// The first byte of items that are pickled one by one; no pickle begins with it.
constexpr std::byte one_by_one{0};

/// An item that has been pickled in advance.
struct Pickled {
  Bytes head;
  std::vector<Bytes> buffers;
};

const Pickled* as_pickled(const pipeline::Item& item) {
  const auto* made = std::get_if<pipeline::LanguageObject>(&item);
  if (made == nullptr) return nullptr;
  const nb::handle object(static_cast<PyObject*>(made->object()));
  return nb::isinstance<Pickled>(object) ? nb::inst_ptr<Pickled>(object) : nullptr;
}

}  // namespace

/// A pickler that is reused and clears its memo after each use, since making one costs more than pickling a small item.
class PythonItemTraits::Pickler {
 public:
  Pickler()
      : sink_(nb::cast(Sink())),
        copyreg_(nb::module_::import_("copyreg").attr("dispatch_table")),
        pickler_(nb::module_::import_("_pickle").attr("Pickler")(sink_, nb::arg("protocol") = 5,
                                                                 nb::arg("buffer_callback") = sink_.attr("keep"))),
        dump_(pickler_.attr("dump")),
        clear_memo_(pickler_.attr("clear_memo")),
        loads_(nb::module_::import_("_pickle").attr("loads")) {}

  Packed pack(std::span<const pipeline::Item> items) {
    know_reducers();
    auto& sink = *nb::inst_ptr<Sink>(sink_);
    const ReleaseGuard released{sink, clear_memo_};
    if (std::ranges::any_of(items, as_pickled) || SharedObjects().are_in(items)) pack_one_by_one(items, sink);
    else dump_(list_of_objects(items));
    sink.packed.hold = std::move(sink.objects);
    return std::move(sink.packed);
  }

  /// Returns a Pickled.
  nb::object pickled(const pipeline::Item& item) {
    know_reducers();
    auto& sink = *nb::inst_ptr<Sink>(sink_);
    const ReleaseGuard released{sink, clear_memo_};
    dump_(object_of_const(item));
    Pickled pickled{.head = std::move(sink.packed.head), .buffers = {}};
    for (const ByteView buffer : sink.packed.buffers) pickled.buffers.emplace_back(buffer.begin(), buffer.end());
    return nb::cast(std::move(pickled));
  }

  std::vector<pipeline::Item> unpack(ByteView head, const nb::list& buffers) const {
    if (head.front() != one_by_one) return items_of(unpickled(head, buffers));
    const auto next_buffers = buffers.attr("__iter__")();
    std::vector<pipeline::Item> items;
    for (ByteReader reader(head.subspan(1)); reader.remaining() > 0;) {
      items.push_back(item_of(unpickled(reader.get_sized(), next_buffers)));
    }
    return items;
  }

 private:
  void pack_one_by_one(std::span<const pipeline::Item> items, Sink& sink) {
    ByteWriter writer;
    writer.put(one_by_one);
    for (const auto& item : items) {
      if (const Pickled* const pickled = as_pickled(item)) {
        writer.put_sized(pickled->head);
        for (const Bytes& buffer : pickled->buffers) sink.packed.buffers.emplace_back(buffer);
        sink.hold(object_of_const(item));
        continue;
      }
      dump_(object_of_const(item));
      clear_memo_();
      writer.put_sized(std::exchange(sink.packed.head, {}));
    }
    sink.packed.head = std::move(writer).take();
  }
  nb::object unpickled(ByteView pickle, nb::handle buffers) const {
    auto* data = reinterpret_cast<char*>(const_cast<std::byte*>(pickle.data()));
    const auto view = nb::steal(PyMemoryView_FromMemory(data, static_cast<Py_ssize_t>(pickle.size()), PyBUF_READ));
    if (!view.is_valid()) throw nb::python_error();
    return loads_(view, nb::arg("buffers") = buffers);
  }

  /// Releases what was pickled on destruction: the memo holds it, and after a failure the sink does too.
  struct ReleaseGuard {
    ~ReleaseGuard() {
      sink.packed = {};
      sink.objects = nullptr;
      try {
        clear_memo();
      } catch (const nb::python_error&) {
        // dump() may already have thrown the actual error.
      }
    }
    Sink& sink;
    const nb::object& clear_memo;
  };

  /// Updates the dispatch table with copyreg's reducers and, once torch is imported, those for tensors.
  void know_reducers() {
    const auto others = nb::len(copyreg_);
    const bool has_torch = !imported("torch").is_none();
    if (known_ && others == others_ && has_torch == has_torch_) return;
    nb::dict table;
    table.update(nb::cast<nb::dict>(copyreg_));
    if (has_torch) table.update(nb::cast<nb::dict>(nb::module_::import_("levada.batch.tensors").attr("reducers")()));
    pickler_.attr("dispatch_table") = table;
    known_ = true;
    others_ = others;
    has_torch_ = has_torch;
  }

  nb::object sink_;
  nb::object copyreg_, pickler_, dump_, clear_memo_, loads_;
  std::size_t others_ = 0;
  bool known_ = false, has_torch_ = false;
};

PythonItemTraits::PythonItemTraits() : pickler_(new Pickler()), libraries_(new TensorLibraries()) {}
PythonItemTraits::~PythonItemTraits() = default;

pipeline::Item PythonItemTraits::list_of(std::vector<pipeline::Item> items) const {
  return in_python([&] {
    const std::vector<pipeline::Item> taken = std::move(items);
    return item_of(list_of_objects(taken));
  });
}

pipeline::Item PythonItemTraits::tuple_of(std::vector<pipeline::Item> items) const {
  return in_python([&] {
    const std::vector<pipeline::Item> taken = std::move(items);
    return item_of(nb::steal(PyList_AsTuple(list_of_objects(taken).ptr())));
  });
}

std::vector<pipeline::Item> PythonItemTraits::elements(pipeline::Item item) const {
  return in_python([&] { return items_of(object_of(std::move(item))); });
}

Tensor PythonItemTraits::other_array(nb::handle value, const std::string& name, TensorKind& kind) const {
  if (auto tensor = libraries_->plain_tensor(value)) {
    kind = TensorKind::torch;
    return *std::move(tensor);
  }
  libraries_->refresh();
  if (!libraries_->is_tensor(value, kind)) {
    const auto type = nb::cast<std::string>(nb::handle(Py_TYPE(value.ptr())).attr("__name__"));
    throw InvalidArgument(fmt::format("{} has type {}; it must be an array of numpy or a tensor of torch", name, type));
  }
  try {
    return libraries_->from_python(value, kind, name);
  } catch (const nb::builtin_exception& refused) {
    throw InvalidArgument(refused.what());
  }
}

bool PythonItemTraits::detach(pipeline::Item& item) const {
  const auto* made = std::get_if<pipeline::LanguageObject>(&item);
  if (made == nullptr) return pipeline::TreeItemTraits().detach(item);
  return in_python([&] {
    auto* object = static_cast<PyObject*>(made->object());
    if (is_constant(object)) return true;
    auto copy = detached(object, *libraries_);
    try {
      item = item_of(copy.is_valid() ? std::move(copy) : pickler_->pickled(item));
      return true;
    } catch (nb::python_error&) {  // pack() throws the reason
      return false;
    }
  });
}

pipeline::Arrays PythonItemTraits::arrays_of(const pipeline::Item& item) const {
  return in_python([&] {
    const auto object = object_of_const(item);
    pipeline::Arrays arrays;
    const auto add = [&](std::string name, nb::handle value) {
      auto tensor = libraries_->plain_array(value);
      if (!tensor) {
        TensorKind kind{};
        tensor = other_array(value, name.empty() ? "the item" : name, kind);
        if (is_torch(kind)) arrays.kind = torch_arrays;
      }
      arrays.fields.emplace_back(std::move(name), *std::move(tensor));
    };
    if (PyDict_Check(object.ptr()) == 0) {
      add({}, object);
      return arrays;
    }
    for (const auto& [key, value] : nb::borrow<nb::dict>(object)) {
      if (!nb::isinstance<nb::str>(key)) {
        throw InvalidArgument(
            fmt::format("a field is named {}, which is no str", nb::cast<std::string>(nb::repr(key))));
      }
      add(nb::cast<std::string>(key), value);
    }
    return arrays;
  });
}

pipeline::Item PythonItemTraits::dict_of(pipeline::Arrays arrays) const {
  return in_python([&] {
    libraries_->refresh();
    const auto kind = arrays.kind == torch_arrays ? TensorKind::torch : TensorKind::array;
    nb::dict fields;
    for (const auto& [name, tensor] : arrays.fields) fields[nb::cast(name)] = libraries_->to_python(tensor, kind);
    return item_of(fields);
  });
}

namespace {

/// Throws, without the hint on allow_pickle: the items of a cache are never pickled.
[[noreturn]] void throw_invalid(std::string_view why) {
  throw InvalidArgument(std::string(why.substr(0, why.find(", or pass allow_pickle"))));
}

}  // namespace

Tree PythonItemTraits::to_tree(const pipeline::Item& item) const {
  return in_python([&] {
    try {
      return levada::python::to_tree(object_of_const(item), Allowed::registered, "item");
    } catch (const nb::builtin_exception& refused) {
      throw_invalid(refused.what());
    } catch (const nb::python_error& refused) {
      if (!refused.matches(PyExc_TypeError)) throw;
      throw_invalid(escaped_str(refused.value()));
    }
  });
}

std::vector<pipeline::Item> PythonItemTraits::from_trees(std::vector<Tree> trees) const {
  return in_python([&] {
    Rebuilder rebuilder(Allowed::registered);
    std::vector<pipeline::Item> items;
    items.reserve(trees.size());
    for (const auto& tree : trees) items.push_back(item_of(rebuilder.rebuild(tree)));
    return items;
  });
}

PythonItemTraits::Packed PythonItemTraits::pack(std::span<const pipeline::Item> items) const {
  return in_python([&] { return pickler_->pack(items); });
}

std::vector<pipeline::Item> PythonItemTraits::unpack(ByteView head, std::span<const std::span<std::byte>> buffers,
                                                     std::shared_ptr<const void> hold) const {
  if (head.empty()) return {};
  return in_python([&] {
    nb::list views;
    for (const auto& buffer : buffers) views.append(memory_object(buffer, hold));
    return pickler_->unpack(head, views);
  });
}

namespace {

/// Copies items as an engine does: buffers arrive in the receiver's memory.
std::pair<nb::list, std::size_t> copy(const PythonItemTraits& traits, const nb::list& objects) {
  const auto items = items_of(objects);
  const auto packed = traits.pack(items);
  auto received = std::make_shared<std::vector<Tensor>>();
  std::vector<std::span<std::byte>> buffers;
  std::size_t beside = 0;
  for (const auto& buffer : packed.buffers) {
    auto& memory =
        received->emplace_back(Tensor::empty(dtypes::uint8, Shape{static_cast<std::int64_t>(buffer.size())}));
    std::copy(buffer.begin(), buffer.end(), memory.mutable_bytes().begin());
    buffers.push_back(memory.mutable_bytes());
    beside += buffer.size();
  }
  return {list_of_objects(traits.unpack(packed.head, buffers, received)), beside};
}

}  // namespace

void bind_pickling(nb::module_& module) {
  nb::class_<Memory>(module, "Memory", nb::type_slots(memory_slots), "Memory owned by Levada.");
  nb::class_<Pickled>(module, "PickledItem");
  nb::class_<Sink>(module, "PickleSink")
      .def("write", &Sink::write, nb::arg("data"))
      .def("keep", &Sink::keep, nb::arg("buffer"));
  module.def(
      "memory_at",
      [](std::uintptr_t address, std::size_t size, nb::object owner) {
        const Shared held(std::move(owner));
        auto hold = std::make_shared<Shared>(held);
        return Memory({reinterpret_cast<std::byte*>(address), size}, std::move(hold));
      },
      nb::arg("address"), nb::arg("size"), nb::arg("owner"),
      "Returns the `size` bytes at `address`, which `owner` keeps alive.");
  nb::class_<PythonItemTraits>(module, "ItemTraits", "Copies items between the processes of a pipeline.")
      .def(nb::init<>())
      .def("copy", &copy, nb::arg("items"),
           nb::sig("def copy(self, items: list[typing.Any]) -> tuple[list[typing.Any], int]"),
           "Returns items as another process receives them, and the number of their bytes outside the pickle.")
      .def(
          "detached",
          [](const PythonItemTraits& traits, nb::handle object) {
            auto copy = traits.copy_of(object);
            const bool is_copy = copy.is_valid();
            return std::pair(is_copy ? std::move(copy) : nb::borrow(object), is_copy);
          },
          nb::arg("item"), nb::sig("def detached(self, item: typing.Any) -> tuple[typing.Any, bool]"),
          "Returns a copy of an item, and True. Returns the item itself and False if it has a part of a class that "
          "cannot "
          "be copied.");
}

}  // namespace levada::python
